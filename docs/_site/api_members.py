"""What a class or a function shows of itself: its signature, its fields and its methods."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from api_source import Found, Module, Sources, assigned

_WIDTH = 96
_FIELDS_ARE_ARGUMENTS = {"dataclass", "NamedTuple", "Struct"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Member:
    name: str
    kind: str
    """`method`, `property`, `field`, or `value` of an enumeration."""
    signature: str
    doc: str
    home: Found
    """The class that has it."""

    @property
    def has_entry(self) -> bool:
        """A field that nothing is said of is in the signature of its class, and that is all."""
        return bool(self.doc) or self.kind != "field"


def signature(sources: Sources, found: Found) -> str:
    """How a public name is written where it is called, or what it is."""
    node = found.node
    if isinstance(node, ast.ClassDef):
        arguments = _arguments_of_class(sources, found)
        return "class " + _call(found.name, arguments or [], "") if arguments is not None else f"class {found.name}"
    if isinstance(node, Function):
        return _of_function(found.module, node)
    assert node is not None
    value = found.module.written(node.value) if node.value is not None else ""
    annotation = f": {found.module.written(node.annotation)}" if isinstance(node, ast.AnnAssign) else ""
    return f"{found.name}{annotation} = {value}"


def members(
    sources: Sources, found: Found, public: set[tuple[str, str]]
) -> tuple[list[Member], list[tuple[Found, Member]]]:
    """The members of a class, and those it has from a public one. What it has from others counts as its own."""
    own = {member.name: member for member in _members_of(found)}
    inherited: dict[str, tuple[Found, Member]] = {}
    for parent in sources.parents(found):
        parents_own, further = members(sources, parent, public)
        is_public = (parent.module.name, parent.name) in public
        for member in parents_own:
            # What says nothing of its own about a public member is that member done another way.
            if member.name in own and is_public and not own[member.name].doc:
                del own[member.name]
            if member.name in own:
                own[member.name] = replace(own[member.name], doc=own[member.name].doc or member.doc)
            elif is_public:
                inherited.setdefault(member.name, (parent, member))
            elif member.name not in inherited:
                own[member.name] = member
        for home, member in further:
            if member.name not in own:
                inherited.setdefault(member.name, (home, member))
    return list(own.values()), list(inherited.values())


def doc_of_class(sources: Sources, found: Found) -> str:
    """Its docstring, or that of the nearest class it is made from that has one."""
    for cls in (found, *sources.bases(found)):
        assert isinstance(cls.node, ast.ClassDef)
        if doc := ast.get_docstring(cls.node):
            return doc
    return ""


def _members_of(cls: Found) -> Iterator[Member]:
    node, module = cls.node, cls.module
    assert isinstance(node, ast.ClassDef)
    docs = module.docs_below(node.body)
    shows_all = _fields_are_arguments(cls) or _is_enum(node)
    for one in node.body:
        if isinstance(one, ast.Assign | ast.AnnAssign):
            name = assigned(one)
            if name and not name.startswith("_") and (shows_all or name in docs):
                yield Member(
                    name, "value" if _is_enum(node) else "field", _of_field(module, name, one), docs.get(name, ""), cls
                )
        elif isinstance(one, Function):
            if one.name == "__init__":
                yield from _set_in(cls, one)
            elif not one.name.startswith("_") and not _is_overload(one):
                doc = ast.get_docstring(one) or ""
                if _decorators(one) & {"property", "cached_property"}:
                    returned = f": {module.written(one.returns)}" if one.returns else ""
                    yield Member(one.name, "property", one.name + returned, doc, cls)
                elif not any(decorator.endswith(("setter", "deleter")) for decorator in _decorators(one)):
                    yield Member(one.name, "method", _of_function(module, one, is_method=True), doc, cls)


def _set_in(cls: Found, init: Function) -> Iterator[Member]:
    """The documented attributes that `__init__` sets."""
    docs = cls.module.docs_below(init.body)
    for one in init.body:
        name = assigned(one) if isinstance(one, ast.Assign | ast.AnnAssign) else None
        if name in docs and not name.startswith("_"):
            kind = f": {cls.module.written(one.annotation)}" if isinstance(one, ast.AnnAssign) else ""
            yield Member(name, "field", name + kind, docs[name], cls)


def _arguments_of_class(sources: Sources, found: Found) -> list[str] | None:
    for cls in (found, *sources.bases(found)):
        assert isinstance(cls.node, ast.ClassDef)
        for one in cls.node.body:
            if isinstance(one, Function) and one.name == "__init__":
                return _arguments(cls.module, one.args, is_method=True)
        if _fields_are_arguments(cls):
            return _fields_as_arguments(sources, cls)
    return None


def _fields_as_arguments(sources: Sources, cls: Found) -> list[str]:
    fields: dict[str, str] = {}
    for part in reversed((cls, *sources.bases(cls))):
        assert isinstance(part.node, ast.ClassDef)
        if not _fields_are_arguments(part):
            continue
        for one in part.node.body:
            if not isinstance(one, ast.AnnAssign) or not (name := assigned(one)) or name.startswith("_"):
                continue
            is_set_later = one.value is not None and "init=False" in ast.unparse(one.value)
            if "ClassVar" not in ast.unparse(one.annotation) and not is_set_later:
                fields[name] = _of_field(part.module, name, one)
    return list(fields.values())


def _fields_are_arguments(cls: Found) -> bool:
    node = cls.node
    assert isinstance(node, ast.ClassDef)
    names = {_last_name(one) for one in (*node.decorator_list, *node.bases)}
    return bool(names & _FIELDS_ARE_ARGUMENTS)


def _is_enum(node: ast.ClassDef) -> bool:
    return any(_last_name(base).endswith("Enum") for base in node.bases)


def _of_field(module: Module, name: str, node: ast.Assign | ast.AnnAssign) -> str:
    kind = f": {module.written(node.annotation)}" if isinstance(node, ast.AnnAssign) else ""
    if node.value is None:
        return name + kind
    value = module.written(node.value)
    if isinstance(node.value, ast.Call) and _last_name(node.value.func) == "field":
        told = {word.arg: module.written(word.value) for word in node.value.keywords}
        if "default" in told:
            value = told["default"]
        elif "default_factory" in told:
            value = {"dict": "{}", "list": "[]", "tuple": "()"}.get(told["default_factory"], "...")
        else:
            return name + kind
    return f"{name}{kind} = {value}"


def _of_function(module: Module, node: Function, is_method: bool = False) -> str:
    is_bound = is_method and "staticmethod" not in _decorators(node)
    returned = f" -> {module.written(node.returns)}" if node.returns else ""
    before = "classmethod " if "classmethod" in _decorators(node) else ""
    if _decorators(node) & {"contextmanager"} and isinstance(node.returns, ast.Subscript):
        given = module.written(node.returns.slice)
        before, returned = "with ", f" as {given}" if given != "None" else ""
    before += "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    return before + _call(node.name, _arguments(module, node.args, is_bound), returned.replace('"', ""))


def _call(name: str, arguments: list[str], returned: str) -> str:
    line = f"{name}({', '.join(arguments)}){returned}"
    if len(line) <= _WIDTH:
        return line
    inside = "".join(f"    {argument},\n" for argument in arguments)
    return f"{name}(\n{inside}){returned}"


def _arguments(module: Module, args: ast.arguments, is_method: bool) -> list[str]:
    positional = [*args.posonlyargs, *args.args]
    values: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults)) + [*args.defaults]
    shown = [_argument(module, one, value) for one, value in zip(positional, values, strict=True)]
    if args.posonlyargs:
        shown.insert(len(args.posonlyargs), "/")
    if is_method:
        shown = shown[1:]
    shown = [one for one in shown if not one.startswith("_")]
    keywords = [_argument(module, one, value) for one, value in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    keywords = [one for one in keywords if not one.startswith("_")]
    if args.vararg:
        shown.append("*" + _argument(module, args.vararg, None))
    elif keywords:
        shown.append("*")
    shown += keywords
    if args.kwarg:
        shown.append("**" + _argument(module, args.kwarg, None))
    return shown


def _argument(module: Module, one: ast.arg, value: ast.expr | None) -> str:
    kind = f": {module.written(one.annotation)}" if one.annotation else ""
    if value is None:
        return one.arg + kind
    return f"{one.arg}{kind} = {module.written(value)}" if kind else f"{one.arg}={module.written(value)}"


def _decorators(node: Function) -> set[str]:
    return {_last_name(one) for one in node.decorator_list}


def _is_overload(node: Function) -> bool:
    return "overload" in _decorators(node)


def _last_name(node: ast.expr) -> str:
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
