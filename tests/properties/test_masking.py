"""Secrets in source code and arguments: none is ever stored, and the code around them is."""

import json

from hypothesis import given
from hypothesis import strategies as st

from paceline._core.masking import mask_arguments, mask_source, mask_text

names = st.sampled_from(["WANDB_API_KEY", "token", "hf_token", "db_password", "clientSecret", "aws_secret_access_key"])
options = st.sampled_from(["api-key", "wandb-key", "hf_token", "db.password"])
values = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, categories=("L", "N", "P", "S")), min_size=1)
"""Of any length: what is left of it is looked for by the marks around it."""

ASSIGNED = [
    "{name} = {secret}",
    "{name}: str = ({secret}\n    'and more')",
    "user, {name} = 'me', {secret}",
    "config.{name} = other = {secret}",
    "os.environ['{name}'] = {secret}",
    "os.environ.setdefault('{name}', {secret})",
    "login({name}={secret}, user='me')",
    "settings = {{'user': 'me', '{name}': {secret}}}",
    "def connect(user='me', *, {name}={secret}): pass",
    "if {name} == {secret}: pass",
    "{name} = os.environ.get('{name}') or f'{{user}}-' + {secret}",
    "parser.add_argument('--{name}', default={secret}, help='how to get in')",
    "run(['tool', '--{name}', {secret}])",
    "headers = {{'Authorization': 'Bearer ' + {secret}}}",
    "setattr(config, '{name}', b'' + {secret})",
]
IN_TEXT = ["# {name} = '{secret}'", "# export {name}={secret}", "run('x --{option} {secret} y')", "x = 'a:{secret}@b'"]


@given(st.sampled_from(ASSIGNED), names, values, st.booleans())
def test_a_secret_in_code_is_masked_and_the_code_around_it_stays(statement, name, value, is_python):
    secret = f"<{value}>"
    code = statement.format(name=name, secret=repr(secret))
    before, after = "import os\n\n\ndef first(x):\n    return 'é', x\n", "\n\nlast = first('stays')  # and this\n"
    cell = "" if is_python else "%time\n!pip install paceline\n"
    masked = mask_source(cell + before + code + after)
    assert secret not in masked
    assert secret not in mask_source(code + "\n(((broken code\n")
    assert masked.startswith(cell + before)
    assert masked.endswith(after)
    assert (name in masked) or statement.startswith("headers")
    if is_python:
        compile(masked, "masked.py", "exec")
        assert mask_source(masked) == masked


letters = st.text("abcdefgh0123456789", min_size=1).map(lambda text: f"x9{text}9x")


@given(st.sampled_from(IN_TEXT[:3]), names, options, letters)
def test_comments_and_commands_in_strings_are_masked(statement, name, option, secret):
    masked = mask_source("x = 1\n" + statement.format(name=name, option=option, secret=secret) + "\ny = 2\n")
    assert secret not in masked
    assert masked.startswith("x = 1\n")
    assert masked.endswith("\ny = 2\n")


@given(options, letters)
def test_a_secret_argument_is_masked_in_every_form(option, secret):
    forms = [f"--{option}={secret}"], [f"--{option}", secret], [f"{option}={secret}"], [f"--set={option}={secret}"]
    for form in (*forms, [f"--header=Authorization: Bearer {secret}"], [json.dumps({option: secret})]):
        masked = mask_arguments(["train.py", *form, "--lr", "0.1", "--token", "--verbose"])
        assert not any(secret in each for each in masked), masked
        assert (masked[0], masked[-4:]) == ("train.py", ["--lr", "0.1", "--token", "--verbose"])


def test_code_without_secrets_is_left_alone():
    code = "tokenizer = Tokenizer(pad_token='<pad>')\nkey = 'loss'\nsort_key = 'a'  # tokens: 3\n\x0c\nx = '''\n'''\n"
    assert mask_source(code) == code
    assert mask_text("tokens per second: 12, keys: 3") == "tokens per second: 12, keys: 3"
    assert mask_source("login('hf_" + "a" * 30 + "')") == "login('***')"
