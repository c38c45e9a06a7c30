"""Matrix products in float32, computed in tiles that stay in the CPU's registers.

Layers with a few hundred columns are small for BLAS, which copies both factors first. Here only the weights are copied,
once per batch. Every element of a product is one sum in ascending order of the inner index, for every tile size and
vector width, so its bits depend on the factors alone.

A right factor is either packed, (vectors, depth, LANES), or plain rows of whole vectors, (depth, vectors * LANES); both
are padded with zero columns. Tiles extend up to MARGIN rows past the end. The left factor and the product must have
that many extra rows, whose values are read and written but have no meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dubnb._jit import JIT_ENABLED, njit, span

LANES = 8  # floats in a vector of AVX2
MARGIN = 5
RowLoader = Callable[[Any], list[Any]]
BLOCK = 120  # rows that are multiplied by the whole right factor at a time: a multiple of every tile's height


def n_vectors(columns: int) -> int:
    """The number of vectors that hold `columns`, at least two: tiles are two or three vectors wide."""
    return max(2, -(-columns // LANES))


if JIT_ENABLED:
    from llvmlite import ir
    from numba.core import cgutils, types
    from numba.extending import intrinsic

    def _address(context: Any, builder: Any, kind: Any, value: Any, place: tuple[Any, ...]) -> tuple[Any, list[Any]]:
        """(address of an array's element, strides in bytes); a stride that follows from the layout is a constant."""
        array = context.make_array(kind)(context, builder, value)
        strides = cgutils.unpack_tuple(builder, array.strides, kind.ndim)
        if kind.layout in "CF":
            strides[-1 if kind.layout == "C" else 0] = context.get_constant(types.intp, 4)
        address = builder.bitcast(array.data, cgutils.voidptr_t)
        for stride, index in zip(strides, place, strict=False):
            address = builder.gep(address, [builder.mul(stride, index)])
        return address, strides

    def _behind(builder: Any, address: Any, kind: Any, *offsets: Any) -> Any:
        """A pointer of type `kind` to `address` plus these offsets in bytes."""
        for offset in offsets:
            address = builder.gep(address, [offset])
        return builder.bitcast(address, kind.as_pointer())

    def _in_every_lane(builder: Any, number: Any, vector: Any) -> Any:
        """A vector with `number` in every lane."""
        nothing, zero = ir.Constant(vector, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        first = builder.insert_element(nothing, number, zero)
        return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None))

    def _emit_start(
        builder: Any, places: dict[tuple[int, int], Any], sums: dict[tuple[int, int], Any], more: Any
    ) -> None:
        """Start the sums with the product's current values if `more`, else with 0."""
        with builder.if_else(more) as (then, otherwise):
            with then:
                for each, place in places.items():
                    builder.store(builder.load(place, align=4), sums[each])
            with otherwise:
                for total in sums.values():
                    builder.store(ir.Constant(ir.VectorType(ir.FloatType(), LANES), None), total)

    def _emit_sums(
        builder: Any, sums: dict[tuple[int, int], Any], depth: Any, rows: tuple[RowLoader, RowLoader]
    ) -> None:
        """sums[row, one] += sum over k of a[row, k] * b[k, one]; rows: load what a and b have for a k."""
        with cgutils.for_range(builder, depth) as loop:
            left, right = rows[0](loop.index), rows[1](loop.index)
            for (row, one), total in sums.items():
                added = builder.fmul(left[row], right[one], flags=("contract",))
                builder.store(builder.fadd(builder.load(total), added, flags=("contract",)), total)

    def _emit_tile(context: Any, builder: Any, shape: tuple[int, int], kinds: tuple[Any, ...], args: Any) -> None:
        """Emit the code of one tile; its sums stay in registers from the first to the last step."""
        (rows, wide), (a, i, k, depth, b, v, out, more) = shape, args
        vector = ir.VectorType(ir.FloatType(), LANES)

        def size(number: int) -> Any:
            return context.get_constant(types.intp, number)

        a, (a_down, a_across) = _address(context, builder, kinds[0], a, (i, k))
        if kinds[1].ndim == 3:
            b, (b_next, b_down, _) = _address(context, builder, kinds[1], b, (v, k))
        else:
            b, (b_down, _) = _address(context, builder, kinds[1], b, (k, builder.mul(v, size(LANES))))
            b_next = size(4 * LANES)
        out, (out_down, _) = _address(context, builder, kinds[2], out, (i, builder.mul(v, size(LANES))))
        tile = [(row, one) for row in range(rows) for one in range(wide)]
        places = {
            (row, one): _behind(builder, out, vector, builder.mul(out_down, size(row)), size(4 * LANES * one))
            for row, one in tile
        }
        sums = {each: cgutils.alloca_once(builder, vector) for each in tile}
        _emit_start(builder, places, sums, more)

        def row_of_a(index: Any) -> list[Any]:
            offset = builder.mul(index, a_across)
            places = (
                _behind(builder, a, vector.element, offset, builder.mul(a_down, size(row))) for row in range(rows)
            )
            return [_in_every_lane(builder, builder.load(place, align=4), vector) for place in places]

        def row_of_b(index: Any) -> list[Any]:
            offset = builder.mul(index, b_down)
            places = (_behind(builder, b, vector, offset, builder.mul(b_next, size(one))) for one in range(wide))
            return [builder.load(place, align=4) for place in places]

        _emit_sums(builder, sums, depth, (row_of_a, row_of_b))
        for each in tile:
            builder.store(builder.load(sums[each]), places[each], align=4)

    @intrinsic
    def _tile(typingctx, rows, wide, a, i, k, depth, b, v, out, more):
        """out = a b, or out += a b if `more`, of `rows` rows from i and `wide` vectors from v, over `depth` from k."""
        if not isinstance(rows, types.IntegerLiteral) or not isinstance(wide, types.IntegerLiteral):
            return None
        signature = types.void(rows, wide, a, *[types.intp] * 3, b, types.intp, out, types.boolean)
        shape = rows.literal_value, wide.literal_value

        def codegen(context, builder, sig, args):
            _emit_tile(context, builder, shape, (a, b, out), args[2:])
            return context.get_dummy_value()

        return signature, codegen

else:

    def _tile(  # type: ignore[misc]
        rows: int,
        wide: int,
        a: np.ndarray,
        i: int,
        k: int,
        depth: int,
        b: np.ndarray,
        v: int,
        out: np.ndarray,
        more: bool,
    ) -> None:
        """out = a b, or out += a b if `more`, of `rows` rows from i and `wide` vectors from v, over `depth` from k."""
        columns = slice(v * LANES, (v + wide) * LANES)
        if b.ndim == 3:
            right = b[v : v + wide, k : k + depth].transpose(1, 0, 2).reshape(depth, wide * LANES)
        else:
            right = b[k : k + depth, columns]
        product = a[i : i + rows, k : k + depth] @ right
        out[i : i + rows, columns] = out[i : i + rows, columns] + product if more else product


@njit
def multiply(a, first, stop, b, out, more):
    """out = a b of the rows from `first` to `stop` (`more`: out += a b); b is packed."""
    wide, depth = b.shape[0], b.shape[1]
    odd = 3 * (wide % 2)
    for start in range(first, stop, BLOCK):
        end = min(start + BLOCK, stop)
        if odd:
            for i in range(start, end, 4):
                _tile(4, 3, a, i, 0, depth, b, 0, out, more)
        for v in range(odd, wide, 2):
            for i in range(start, end, 6):
                _tile(6, 2, a, i, 0, depth, b, v, out, more)


@njit
def multiply_transposed(a, columns, b, first, stop, out, more):
    """out = a^T b over the rows from `first` to `stop` (`more`: +=), with `columns` columns of a; b is plain rows."""
    turned, wide = a.T, b.shape[1] // LANES
    odd = 3 * (wide % 2)
    for start in range(first, stop, BLOCK):
        depth = min(BLOCK, stop - start)
        add = more or start > first
        if odd:
            for i in range(0, columns, 4):
                _tile(4, 3, turned, i, start, depth, b, 0, out, add)
        for v in range(odd, wide, 2):
            for i in range(0, columns, 5):
                _tile(5, 2, turned, i, start, depth, b, v, out, add)


@njit
def pack_panels(weights, depth, columns, out):
    """Pack the (depth, columns) matrix in the flat array `weights` as a right factor."""
    whole = columns // LANES
    for k in range(depth):
        for v in range(whole):
            source, target = span(weights, k * columns + v * LANES, LANES), span(out, (v * depth + k) * LANES, LANES)
            for lane in range(LANES):
                target[lane] = source[lane]
        for lane in range(columns - whole * LANES):
            out[whole, k, lane] = weights[k * columns + whole * LANES + lane]


@njit
def pack_transposed(weights, depth, columns, out):
    """Pack the transpose of the (columns, depth) matrix in the flat array `weights` as a right factor."""
    for column in range(columns):
        v, lane = column // LANES, column % LANES
        source, target = span(weights, column * depth, depth), span(out, v * depth * LANES, depth * LANES)
        for k in range(depth):
            target[k * LANES + lane] = source[k]
