"""Find barriers that not all threads of a block reach, by reading the source of kernels and device functions.

A name is *divergent* where it may differ between the threads of a block: it is made from the thread's own number, from
another divergent name, from a device function's answer that is, or under a condition that is. What an array holds
counts as the same for all threads, so that a read is as divergent as its index. A barrier must not stand under a
divergent condition or loop, and no thread may leave a function with barriers by one.
"""

import ast

OWN = {"threadIdx", "grid", "laneid"}  # attributes of `cuda` that differ between the threads of a block
LEAVES = (ast.Break, ast.Continue, ast.Return)


def faults(source):
    """[(function, line, what)] of barriers that some threads might not reach."""
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    own, synced = set(), set()  # functions whose answer differs between threads; functions with barriers
    for _ in functions:  # as often as calls can be nested
        own |= {name for name, node in functions.items() if _answers_differ(node, own)}
        synced |= {
            name for name, node in functions.items() if any(_is_barrier(each, synced) for each in ast.walk(node))
        }
    found = []
    for name, node in functions.items():
        if name in synced:
            found += [
                (name, *fault) for fault in _misplaced(node.body, _divergent_names(node, own), own, synced, False)
            ]
    return found


def _differs(node, names, own):
    """Whether an expression may differ between threads."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and each.id in names | own:
            return True
        if isinstance(each, ast.Attribute) and each.attr in OWN and getattr(each.value, "id", None) == "cuda":
            return True
    return False


def _divergent_names(function, own):
    names = set()
    while True:
        before = len(names)
        _spread(function.body, names, own, False)
        if len(names) == before:
            return names


def _spread(body, names, own, divergent):
    for node in body:
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value is not None:
            if divergent or _differs(node.value, names, own):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    stored = target.elts if isinstance(target, ast.Tuple) else [target]
                    names.update(each.id for each in stored if isinstance(each, ast.Name))
        elif isinstance(node, ast.For):
            inside = divergent or _differs(node.iter, names, own)
            if inside:
                names.update(each.id for each in ast.walk(node.target) if isinstance(each, ast.Name))
            _spread(node.body, names, own, inside)
        elif isinstance(node, ast.If | ast.While):
            inside = divergent or _differs(node.test, names, own)
            _spread([*node.body, *node.orelse], names, own, inside)


def _answers_differ(function, own):
    names = _divergent_names(function, own)
    returns = [each.value for each in ast.walk(function) if isinstance(each, ast.Return) and each.value is not None]
    return any(_differs(value, names, own) for value in returns)


def _is_barrier(node, synced):
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    return getattr(called, "attr", "").startswith("sync") or getattr(called, "id", None) in synced


def _misplaced(body, names, own, synced, divergent):
    for node in body:
        if isinstance(node, ast.For | ast.While | ast.If):
            head = node.iter if isinstance(node, ast.For) else node.test
            inside = divergent or _differs(head, names, own)
            yield from _misplaced([*node.body, *node.orelse], names, own, synced, inside)
        elif divergent and isinstance(node, LEAVES):
            yield node.lineno, "some threads leave"
        elif divergent and any(_is_barrier(each, synced) for each in ast.walk(node)):
            yield node.lineno, "some threads wait"
