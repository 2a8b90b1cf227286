"""What a class or a function shows of itself: its signature, its fields and its methods, as Sphinx writes them."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from api_source import Found, Module, Sources, assigned

_FIELDS_ARE_ARGUMENTS = {"dataclass", "NamedTuple", "Struct"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Shown:
    """A directive of Sphinx's domain for Python."""

    kind: str
    """`class`, `function`, `data`, `method`, `property` or `attribute`."""
    signature: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Member:
    name: str
    shown: Shown
    doc: str
    home: Found
    """The class that has it."""

    @property
    def has_entry(self) -> bool:
        """A field that nothing is said of is in the signature of its class, and that is all."""
        return bool(self.doc) or self.shown.kind != "attribute" or self.is_value

    @property
    def is_value(self) -> bool:
        """Whether it is a value of an enumeration."""
        return isinstance(self.home.node, ast.ClassDef) and _is_enum(self.home.node)


def shown(sources: Sources, found: Found, name: str) -> Shown:
    """How a public name is written where it is called, or what it is."""
    node = found.node
    if isinstance(node, ast.ClassDef):
        arguments = _arguments_of_class(sources, found)
        return Shown("class", name if arguments is None else f"{name}({', '.join(arguments)})")
    if isinstance(node, Function):
        return _of_function(found.module, node, name)
    assert node is not None
    return _of_value(found.module, "data", name, node)


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
                yield Member(name, _of_value(module, "attribute", name, one), docs.get(name, ""), cls)
        elif isinstance(one, Function):
            if one.name == "__init__":
                yield from _set_in(cls, one)
            elif not one.name.startswith("_") and not _is_overload(one):
                doc = ast.get_docstring(one) or ""
                if _decorators(one) & {"property", "cached_property"}:
                    options = (f":type: {_annotation(module, one.returns)}",) if one.returns else ()
                    yield Member(one.name, Shown("property", one.name, options), doc, cls)
                elif not any(decorator.endswith(("setter", "deleter")) for decorator in _decorators(one)):
                    yield Member(one.name, _of_function(module, one, one.name, is_method=True), doc, cls)


def _set_in(cls: Found, init: Function) -> Iterator[Member]:
    """The documented attributes that `__init__` sets."""
    docs = cls.module.docs_below(init.body)
    for one in init.body:
        name = assigned(one) if isinstance(one, ast.Assign | ast.AnnAssign) else None
        if name in docs and not name.startswith("_"):
            kind = (f":type: {_annotation(cls.module, one.annotation)}",) if isinstance(one, ast.AnnAssign) else ()
            yield Member(name, Shown("attribute", name, kind), docs[name], cls)


def _arguments_of_class(sources: Sources, found: Found) -> list[str] | None:
    for cls in (found, *sources.bases(found)):
        assert isinstance(cls.node, ast.ClassDef)
        for one in cls.node.body:
            if isinstance(one, Function) and one.name == "__init__":
                return _with_inherited(sources, cls, _arguments(cls.module, one.args, is_method=True))
        if _fields_are_arguments(cls):
            return _fields_as_arguments(sources, cls)
    return None


def _with_inherited(sources: Sources, cls: Found, arguments: list[str]) -> list[str]:
    """Put the arguments of the parent class in place of a trainer's `**arguments`, which stand for them."""
    *own, last = arguments or [""]
    if not last.startswith("**arguments"):
        return arguments
    known = {one.partition(":")[0] for one in own} | {"backend_config"}
    inherited = [one for parent in sources.parents(cls) for one in _arguments_of_class(sources, parent) or ()]
    own += [one for one in inherited if one.partition(":")[0] not in known]
    return [*own, last] if last.endswith(": Any") else own


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


def _of_field(module: Module, name: str, node: ast.AnnAssign) -> str:
    value = _default(module, node.value)
    return f"{name}: {_annotation(module, node.annotation)}" + (f" = {value}" if value else "")


def _of_value(module: Module, kind: str, name: str, node: ast.Assign | ast.AnnAssign) -> Shown:
    options = [f":type: {_annotation(module, node.annotation)}"] if isinstance(node, ast.AnnAssign) else []
    if value := _default(module, node.value):
        options.append(f":value: {value}")
    return Shown(kind, name, tuple(options))


def _default(module: Module, value: ast.expr | None) -> str:
    if isinstance(value, ast.Call) and _last_name(value.func) == "field":
        told = {word.arg: module.written(word.value) for word in value.keywords}
        if "default_factory" in told:
            return {"dict": "{}", "list": "[]", "tuple": "()"}.get(told["default_factory"], "...")
        return told.get("default", "")
    return module.written(value) if value is not None else ""


def _of_function(module: Module, node: Function, name: str, is_method: bool = False) -> Shown:
    decorators = _decorators(node)
    options = [f":{one}:" for one in ("classmethod", "staticmethod") if one in decorators]
    options += [":async:"] if isinstance(node, ast.AsyncFunctionDef) else []
    returned = _annotation(module, node.returns) if node.returns else ""
    if "contextmanager" in decorators and isinstance(node.returns, ast.Subscript):
        returned = f"AbstractContextManager[{_annotation(module, node.returns.slice)}]"
    chosen = {one.arg: one.value for call in node.decorator_list if isinstance(call, ast.Call) for one in call.keywords}
    arguments = ", ".join(_arguments(module, node.args, is_method and "staticmethod" not in decorators, chosen))
    written = f"{name}({arguments})" + (f" -> {returned}" if returned else "")
    return Shown("method" if is_method else "function", written, tuple(options))


def _annotation(module: Module, node: ast.expr) -> str:
    """A type as it is meant: what is in quotes only for the sake of the import is not in quotes here."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return module.written(node)


def _arguments(
    module: Module, args: ast.arguments, is_method: bool, defaults: Mapping[str | None, ast.expr] | None = None
) -> list[str]:
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
    shared = args.kwarg and args.kwarg.annotation
    if isinstance(shared, ast.Subscript) and _last_name(shared) == "Unpack" and isinstance(shared.slice, ast.Name):
        keywords += _shared_options(module, shared.slice.id, defaults or {})
        args = ast.arguments([], [], args.vararg, [], [], None, [])
    if args.vararg:
        shown.append("*" + _argument(module, args.vararg, None))
    elif keywords:
        shown.append("*")
    shown += keywords
    if args.kwarg:
        shown.append("**" + _argument(module, args.kwarg, None))
    return shown


def _shared_options(module: Module, name: str, defaults: Mapping[str | None, ast.expr]) -> list[str]:
    """The arguments that a `TypedDict` of `Annotated[type, default]` stands for."""
    cls = module.defined.get(name)
    if not isinstance(cls, ast.ClassDef):
        return []
    shown = [one for base in cls.bases for one in _shared_options(module, _last_name(base), defaults)]
    for field in cls.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.annotation, ast.Subscript):
            assert isinstance(field.target, ast.Name)
            assert isinstance(field.annotation.slice, ast.Tuple)
            kind, default = field.annotation.slice.elts
            value = defaults.get(field.target.id, default)
            shown.append(f"{field.target.id}: {_annotation(module, kind)} = {module.written(value)}")
    return shown


def _argument(module: Module, one: ast.arg, value: ast.expr | None) -> str:
    kind = f": {_annotation(module, one.annotation)}" if one.annotation else ""
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
