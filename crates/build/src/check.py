# Runs during a build: compiles every file of a folder, and looks for the handler function without running any code.
import ast
import os
import py_compile
import sys

folder, handler, function, wrapper = sys.argv[1:]


def sources():
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in ("__pycache__", "node_modules")]
        for name in files:
            if name.endswith(".py"):
                yield os.path.join(root, name)


def parse(path):
    try:
        with open(path, "rb") as file:
            return ast.parse(file.read(), os.path.relpath(path, folder))
    except SyntaxError as error:
        sys.exit("syntax: %s, line %s: %s" % (error.filename, error.lineno, error.msg))
    except ValueError as error:
        sys.exit("syntax: %s: %s" % (path, error))


def names(nodes):
    """The names that the top level of a module binds, including those inside if and try. None stands for unknown imported names."""
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield None if alias.name == "*" else alias.asname or alias.name.split(".")[0]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        yield from names(ast.iter_child_nodes(node))


trees = {os.path.relpath(path, folder): parse(path) for path in sources()}
bound = set(names(trees[handler].body))
if function not in bound and None not in bound and "__getattr__" not in bound:
    sys.exit("handler: %s has no function %s" % (handler, function))
for path in trees:
    # The artifact never changes, so nothing needs to be compared at a start.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(os.path.join(folder, path), doraise=True, invalidation_mode=mode)
for name in ("klambda.py", "klambda_http.py"):
    py_compile.compile(os.path.join(wrapper, name), doraise=True)
