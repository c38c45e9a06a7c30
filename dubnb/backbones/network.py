"""The forward and backward pass of ncf's dense layers, and their matrix products.

The first layer has two blocks of weights, W_u and W_i, which are multiplied once per distinct user or item. Every later
layer has one block and is computed for a few samples at a time; the last one is a single column. Rows of layers are
padded to whole vectors. The padding of weights and biases is 0, and therefore so is that of errors.

**Products** are in float32, computed in tiles that stay in the CPU's registers. Layers with a few hundred columns are
small for BLAS, which copies both factors first. Here only the weights are copied, once per batch. Every element of a
product is one sum in ascending order of the inner index. Tile size and vector width do not change that, so its bits
depend on the factors alone.

A right factor is either packed, (vectors, depth, LANES), or plain rows of whole vectors, (depth, vectors * LANES); both
are padded with zero columns. Tiles extend up to MARGIN rows past the end. The left factor and the product must have
that many extra rows, whose values are read and written but have no meaning.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dubnb._jit import JIT_ENABLED, njit, span
from dubnb.backbones import mf
from dubnb.losses import sigmoid

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


# ---- dense layers ----------------------------------------------------------------------------------------------------


TANH, RELU, SIGMOID = range(3)
ACTIVATIONS = {"tanh": TANH, "relu": RELU, "sigmoid": SIGMOID}
_SATURATED = np.float32(9.0)  # tanh(9) rounds to 1 in float32
_ZERO, _HALF, _ONE, _TWO = np.float32(0.0), np.float32(0.5), np.float32(1.0), np.float32(2.0)
SAMPLES = 48  # samples that pass the later layers together: few enough for their values to stay in the cache
# Columns of Network.blocks: the block's shape, its shape in vectors, and its offsets in dense, packed (twice) and sums.
# Columns of Network.layers: a row's padded length, and the offsets of biases (in dense, in packed) and values.
FAN_IN, FAN_OUT, DOWN, ACROSS, PARAMETERS, FORWARD, BACKWARD, SUMS = range(8)
WIDTH, BIASES, PADDED, VALUES = range(4)


# ---- activations of the hidden layers: scalar functions, chosen by an integer code ----------------------------------


@njit(inline=True)
def tanh(z):
    """The [7/6] Pade approximant at z / 2, then tanh z = 2 n d / (n^2 + d^2): within 3e-7 of tanh.

    One division, and plain arithmetic that the compiler turns into vector instructions.
    """
    y = _HALF * min(max(z, -_SATURATED), _SATURATED)
    y2 = y * y
    n = y * (np.float32(135135.0) + y2 * (np.float32(17325.0) + y2 * (np.float32(378.0) + y2)))
    d = np.float32(135135.0) + y2 * (np.float32(62370.0) + y2 * (np.float32(3150.0) + y2 * np.float32(28.0)))
    return _TWO * n * d / (n * n + d * d)


@njit(inline=True)
def activated(z, activation):
    """f(z)."""
    if activation == TANH:
        return tanh(z)
    if activation == RELU:
        return max(z, _ZERO)
    return sigmoid(z)


@njit(inline=True)
def activation_slope(h, activation):
    """f'(z) as a function of h = f(z)."""
    if activation == TANH:
        return _ONE - h * h
    if activation == RELU:
        return _ONE if h > 0 else _ZERO
    return h * (_ONE - h)


# ---- the network ---------------------------------------------------------------------------------------------------


class Network(NamedTuple):
    """Dense parameters with their moments, and scratch space for some samples' layers and a batch's gradients."""

    dense: np.ndarray  # (3, parameters) float32: weights, and Adam's two moments
    gradient: np.ndarray  # (parameters,) float32
    is_weight: np.ndarray  # (parameters,) float32: 1 for weights, 0 for biases
    sizes: np.ndarray  # (layers + 1,) int64: 2 rank, hidden ..., 1
    blocks: np.ndarray  # (layers + 1, 8) int64: W_u, W_i, W_2, ...
    layers: np.ndarray  # (layers, 4) int64
    packed: np.ndarray  # flat: every block and its transpose as right factors, and padded biases
    sums: np.ndarray  # flat: dW of every block, padded, and db behind its margin
    values: np.ndarray  # flat: h_1, h_2, ... of up to SAMPLES samples
    errors: np.ndarray  # flat, the same layout: d z_1, d z_2, ...
    scores: np.ndarray  # (SAMPLES,)
    slopes: np.ndarray  # (SAMPLES,) ds
    activation: int


def new_network(dense: np.ndarray, sizes: np.ndarray, activation: int) -> Network:
    """A network with these parameters."""
    is_weight = np.concatenate([np.repeat((1.0, 0.0), (m * n, n)) for m, n in itertools.pairwise(sizes)])
    half = int(sizes[0]) // 2, int(sizes[1])
    blocks: list[tuple[int, ...]] = []
    layers: list[tuple[int, ...]] = []
    parameters = packed = sums = values = 0
    for m, n in (half, half, *itertools.pairwise(sizes[1:].tolist())):
        down, width = n_vectors(m), n_vectors(n) * LANES
        backward = packed + m * width
        blocks.append((m, n, down, width // LANES, parameters, packed, backward, sums))
        parameters, packed, sums = parameters + m * n, backward + n * down * LANES, sums + (m + MARGIN + 1) * width
        if len(blocks) > 1:
            layers.append((width, parameters, packed, values))
            parameters, packed, values = parameters + n, packed + width, values + (SAMPLES + MARGIN) * width
    return Network(
        dense,
        np.zeros_like(dense[0]),
        is_weight.astype(np.float32),
        sizes.astype(np.int64),
        np.array(blocks, np.int64),
        np.array(layers, np.int64),
        packed=mf.aligned_array((packed,)),
        sums=mf.aligned_array((sums,)),
        values=mf.aligned_array((values,)),
        errors=mf.aligned_array((values,)),
        scores=mf.aligned_array((SAMPLES,)),
        slopes=mf.aligned_array((SAMPLES,)),
        activation=activation,
    )


class Side(NamedTuple):
    """The distinct users, or items, of a batch, with their half of the first layer and its gradient.

    Users are processed in blocks, items all at once. All arrays except the slots have MARGIN extra rows.
    """

    slots: mf.RowSlots
    x: np.ndarray  # (users of a block, or items; rank) p_u or q_i
    z: np.ndarray  # (same rows; first hidden, padded) p_u W_u or q_i W_i
    dz: np.ndarray  # (same rows; first hidden, padded) d z_1 summed over the row's samples
    gradients: np.ndarray  # (BLOCK, width) dx of a block, padded as the tables are


def new_side(n_rows: int, rank: int, hidden: int, batch_size: int, n_distinct: int) -> Side:
    """Scratch space for batches of up to `batch_size` with at most `n_distinct` distinct rows at a time."""
    rows, width = min(batch_size, n_rows, n_distinct) + MARGIN, n_vectors(hidden) * LANES
    shapes = (rows, rank + MARGIN), (rows, width), (rows, width), (BLOCK + MARGIN, mf.padded(rank))
    return Side(mf.new_slots(n_rows, batch_size), *map(mf.aligned_array, shapes))


@njit
def _whole_vectors(width):
    """`width`, written so that the compiler sees a multiple of LANES and omits the remainder of loops."""
    return width // LANES * LANES


@njit
def _row(rows, j, width):
    """Row j of a layer's array as a span."""
    return span(rows, j * _whole_vectors(width), _whole_vectors(width))


@njit
def forward_block(network, number):
    """A block as a right factor, for x W."""
    block = network.blocks[number]
    size = block[ACROSS] * block[FAN_IN] * LANES
    return span(network.packed, block[FORWARD], size).reshape((block[ACROSS], block[FAN_IN], LANES))


@njit
def backward_block(network, number):
    """A block's transpose as a right factor, for dz W^T."""
    block = network.blocks[number]
    size = block[DOWN] * block[FAN_OUT] * LANES
    return span(network.packed, block[BACKWARD], size).reshape((block[DOWN], block[FAN_OUT], LANES))


@njit
def _sums(network, number):
    """dW of a block, with its margin; db of its layer in the last row."""
    block = network.blocks[number]
    rows, width = block[FAN_IN] + MARGIN + 1, block[ACROSS] * LANES
    return span(network.sums, block[SUMS], rows * width).reshape((rows, width))


@njit
def _biases(network, layer):
    return span(network.packed, network.layers[layer, PADDED], _whole_vectors(network.layers[layer, WIDTH]))


@njit
def _is_output(network, number):
    """Whether a block is the single column after hidden layers, which is stored as a row."""
    return number > 1 and number == len(network.sizes) - 1


@njit
def pack_network(network, transposes):
    """Copy the current weights and biases to `packed`, where products read them; optionally their transposes too."""
    blocks, layers, dense, packed = network.blocks, network.layers, network.dense, network.packed
    for number in range(len(blocks)):
        m, n = blocks[number, FAN_IN], blocks[number, FAN_OUT]
        weights = span(dense, blocks[number, PARAMETERS], m * n)
        if _is_output(network, number):
            mf.put(weights, span(packed, blocks[number, FORWARD], m))
        else:
            pack_panels(weights, m, n, forward_block(network, number))
            if transposes:
                pack_transposed(weights, n, m, backward_block(network, number))
    for layer in range(len(layers)):
        biases, at = _biases(network, layer), layers[layer, BIASES]
        for k in range(network.sizes[layer + 1]):
            biases[k] = dense[0, at + k]


@njit
def activate(z, activation):
    """f(z) in place; each activation has its own loop, so that the compiler can use vector instructions."""
    if activation == TANH:
        for j in range(len(z)):
            z[j] = tanh(z[j])
    elif activation == RELU:
        for j in range(len(z)):
            z[j] = activated(z[j], RELU)
    else:
        for j in range(len(z)):
            z[j] = activated(z[j], SIGMOID)


@njit
def times_slope(error, h, activation):
    """error * f'(z) in place."""
    if activation == TANH:
        for j in range(len(h)):
            error[j] *= activation_slope(h[j], TANH)
    elif activation == RELU:
        for j in range(len(h)):
            error[j] *= activation_slope(h[j], RELU)
    else:
        for j in range(len(h)):
            error[j] *= activation_slope(h[j], SIGMOID)


@njit
def half_forward(network, number, table, side, start, stop, parts, more):
    """x and z = x W (`more`: z += x W) of the slots from `start` to `stop`; parts: what to prefetch of a row."""
    slot_rows, x = side.slots.row, side.x
    rank, across = network.blocks[number, FAN_IN], side.x.shape[1]
    for slot in range(start, stop):
        if slot + mf.PREFETCH_DISTANCE < len(slot_rows):
            mf.prefetch_row(table, slot_rows[slot + mf.PREFETCH_DISTANCE], parts)
        source = span(table, np.int64(slot_rows[slot]) * table.shape[1] * table.shape[2], rank)
        target = span(x, (slot - start) * across, rank)
        for k in range(rank):
            target[k] = source[k]
    multiply(x, 0, stop - start, forward_block(network, number), side.z, more)


@njit
def first_values(network, user_z, item_z, users, items):
    """z_1 = p_u W_u + q_i W_i + b_1 of some samples; `users` and `items` are the samples' rows in the two halves."""
    biases, width = _biases(network, 0), user_z.shape[1]
    for j in range(len(users)):
        z_u, z_i = _row(user_z, np.int64(users[j]), width), _row(item_z, np.int64(items[j]), width)
        z = _row(network.values, j, width)
        for k in range(len(z)):
            z[k] = z_u[k] + z_i[k] + biases[k]


@njit
def forward(network, n):
    """Compute `scores` of n samples from z_1 in `values`; the hidden layers' values stay in `values`."""
    sizes, values, scores = network.sizes, network.values, network.scores
    last = len(sizes) - 2
    for layer in range(last + 1):
        here, width = network.layers[layer, VALUES], network.layers[layer, WIDTH]
        if layer == last and layer > 0:
            _dots(network, n, values)
        elif layer == last:
            for j in range(n):
                scores[j] = values[j * width]
        else:
            if layer > 0:
                _next_values(network, layer, n, values)
            activate(span(values, here, n * _whole_vectors(width)), network.activation)


@njit
def _next_values(network, layer, n, values):
    """z_l = h_{l-1} W_l + b_l of a hidden layer after the first; h_{l-1} is in `values`."""
    h, z = _rows_of(network, values, layer - 1), _rows_of(network, network.values, layer)
    multiply(h, 0, n, forward_block(network, layer + 1), z, False)
    biases = _biases(network, layer)
    for j in range(n):
        row = _row(z, j, z.shape[1])
        for k in range(len(row)):
            row[k] += biases[k]


@njit
def _rows_of(network, room, layer):
    """A hidden layer's part of `values` or `errors`, as rows."""
    width = network.layers[layer, WIDTH]
    return span(room, network.layers[layer, VALUES], (SAMPLES + MARGIN) * width).reshape((SAMPLES + MARGIN, width))


@njit
def _dots(network, n, values):
    """s = h w + b; h is in `values`."""
    last = len(network.sizes) - 2
    bias, scores = network.dense[0, network.layers[last, BIASES]], network.scores
    for j in range(n):
        h, s = _row_of_last(values, network, j), np.float32(0.0)
        w = span(network.packed, network.blocks[last + 1, FORWARD], len(h))
        for k in range(len(h)):
            s += h[k] * w[k]
        scores[j] = s + bias


@njit
def forward_mode(network, turned, n):
    """Derivatives of the scores of n samples along the direction in `turned`, after `forward`.

    dz_l = dh_{l-1} W_l + h_{l-1} dW_l + db_l, dh_l = f'(z_l) dz_l. dz_1 is in turned.values; the result is in
    turned.scores.
    """
    last = len(network.sizes) - 2
    if last == 0:
        for j in range(n):
            turned.scores[j] = turned.values[j * network.layers[0, WIDTH]]
        return
    for layer in range(last):
        here, size = network.layers[layer, VALUES], n * _whole_vectors(network.layers[layer, WIDTH])
        if layer > 0:
            _next_values(turned, layer, n, network.values)
            dz = _rows_of(network, turned.values, layer)
            dh = _rows_of(network, turned.values, layer - 1)
            multiply(dh, 0, n, forward_block(network, layer + 1), dz, True)
        times_slope(span(turned.values, here, size), span(network.values, here, size), network.activation)
    _dots(turned, n, network.values)
    for j in range(n):
        h = _row_of_last(turned.values, network, j)
        w = span(network.packed, network.blocks[last + 1, FORWARD], len(h))
        turned.scores[j] += mf.dot(h, w)


@njit
def _row_of_last(values, network, j):
    """Sample j's row of the last hidden layer as a span."""
    layer = network.layers[len(network.sizes) - 3]
    return span(values, layer[VALUES] + j * _whole_vectors(layer[WIDTH]), _whole_vectors(layer[WIDTH]))


@njit
def backward(network, n, more):
    """dW and db of the layers after the first, and d z_1 in `errors`, from ds in `slopes`; += if `more`."""
    sizes, slopes, errors = network.sizes, network.slopes, network.errors
    last = len(sizes) - 2
    if last == 0:
        width = network.layers[0, WIDTH]
        for j in range(n):
            errors[j * width] = slopes[j]
        return
    _backward_dots(network, n, more)
    for layer in range(last - 1, -1, -1):
        size = n * _whole_vectors(network.layers[layer, WIDTH])
        here = network.layers[layer, VALUES]
        times_slope(span(errors, here, size), span(network.values, here, size), network.activation)
        if layer > 0:
            h, dh = _rows_of(network, network.values, layer - 1), _rows_of(network, errors, layer - 1)
            dz, sums = _rows_of(network, errors, layer), _sums(network, layer + 1)
            multiply_transposed(h, sizes[layer], dz, 0, n, sums, more)
            sum_rows(dz, n, sums, more)
            multiply(dz, 0, n, backward_block(network, layer + 1), dh, False)


@njit
def _backward_dots(network, n, more):
    """dw = sum e_j h_j, db = sum e_j and d h_j = e_j w of the output."""
    last = len(network.sizes) - 2
    here, block, slopes = network.layers[last - 1, VALUES], network.blocks[last + 1], network.slopes
    width = _whole_vectors(network.layers[last - 1, WIDTH])
    w, dw = span(network.packed, block[FORWARD], width), span(network.sums, block[SUMS], width)
    db = span(network.sums, block[SUMS] + width, 1)
    if not more:
        dw[:], db[0] = np.float32(0.0), np.float32(0.0)
    for j in range(n):
        h, dh = span(network.values, here + j * width, width), span(network.errors, here + j * width, width)
        error = slopes[j]
        db[0] += error
        for k in range(width):
            dw[k] += error * h[k]
            dh[k] = error * w[k]


@njit
def sum_rows(rows, n, sums, more):
    """Write the sum of n rows to the last row of `sums`; += if `more`."""
    out = _row(sums, len(sums) - 1, sums.shape[1])
    if not more:
        out[:] = np.float32(0.0)
    for j in range(n):
        row = _row(rows, j, rows.shape[1])
        for k in range(len(out)):
            out[k] += row[k]


@njit
def add_first_errors(network, user_dz, item_dz, users, items):
    """Add d z_1 of some samples to the sums of their users and items."""
    width = user_dz.shape[1]
    for j in range(len(users)):
        dz_u, dz_i = _row(user_dz, np.int64(users[j]), width), _row(item_dz, np.int64(items[j]), width)
        dz = _row(network.errors, j, width)
        for k in range(len(dz)):
            dz_u[k] += dz[k]
            dz_i[k] += dz[k]


@njit
def half_backward(network, number, side, start, stop, more):
    """dx = dz W^T, into `gradients`, and dW = x^T dz (+= if `more`) of the rows from `start` to `stop`."""
    sums, n = _sums(network, number), stop - start
    dz, x = _block_of(side.dz, start, n), _block_of(side.x, start, n)
    multiply(dz, 0, n, backward_block(network, number), side.gradients, False)
    multiply_transposed(x, network.blocks[number, FAN_IN], dz, 0, n, sums, more)
    if number == 1:
        sum_rows(dz, n, sums, more)


@njit
def _block_of(rows, start, n):
    """n rows and a margin from `start`."""
    width = rows.shape[1]
    return span(rows, start * width, (n + MARGIN) * width).reshape((n + MARGIN, width))


@njit
def gather_gradient(network):
    """Copy the batch's dW and db from `sums` to `gradient`."""
    blocks, gradient = network.blocks, network.gradient
    for number in range(len(blocks)):
        m, n, at = blocks[number, FAN_IN], blocks[number, FAN_OUT], blocks[number, PARAMETERS]
        if _is_output(network, number):
            here, width = blocks[number, SUMS], network.layers[number - 2, WIDTH]
            mf.put(span(network.sums, here, m), span(gradient, at, m))
            gradient[at + m] = network.sums[here + width]
            continue
        sums = _sums(network, number)
        for k in range(m):
            mf.put(sums[k, :n], span(gradient, at + k * n, n))
        if number > 0:
            mf.put(sums[len(sums) - 1, :n], span(gradient, network.layers[number - 1, BIASES], n))
