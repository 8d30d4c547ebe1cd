"""Chat templates: equal to a plain Jinja environment, and harmless where they are meant to harm."""

import json
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import jinja2.ext
import jinja2.sandbox
import pytest

from rillm.chat.template import render
from rillm.errors import TemplateError

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] +"
    " '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{- bos_token }}{% for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{- message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
# what templates in use do: namespaces, slices, macros that call themselves, tools, loop controls
BUSY = """{%- set ns = namespace(last=messages|length - 1, seen=[]) %}
{%- macro show(value, depth=0) %}
  {%- if value is mapping %}{{ '{' }}{% for key, item in value|items %}{{ key ~ '=' }}
  {{- show(item, depth + 1) }}{{ ', ' if not loop.last }}{% endfor %}{{ '}' }}
  {%- elif value is string %}{{ value|tojson }}{% else %}{{ value }}{% endif %}
{%- endmacro %}
{%- if tools %}
    {%- for tool in tools %}
        {{- tool|tojson(indent=4) }}
    {% endfor %}{{ show(tools[0]) }}
{%- endif %}
{%- for message in messages[::-1] if message.role == 'user' %}
    {%- set ns.last = messages|length - loop.index %}{% set ns.seen = ns.seen + [message.role] %}
    {%- break %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {%- set content = message.content %}
    {%- if '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {%- if loop.first or (not loop.last and loop.index0 > ns.last) %}{{ '#' }}{% endif %}
    {{- '<' ~ message.role|upper ~ loop.index ~ '>' + content|trim|replace('a', 'bb') }}
    {%- filter indent(2) %}x
y{% endfilter %}
    {{- '%s|%5d' % (message.role, 7) ~ "{:>4}".format(3) ~ (message.items()|list|length) }}
{% endfor %}
{{- messages|map(attribute='role')|unique|sort|join('/') }}{{ undefined_thing }}
{{- [1, 2, 3][1:] }} {{ 7 // 2 * 2 ** 3 % 5 }} {{ [0] * 3 }} {{ none }} {{ 'x' * 3 }}
{{ documents }}
"""
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  Is <b> & 'c' ünder 🦙?\n"},
    {"role": "assistant", "content": "<think>hmm</think>\n\nA plain answer."},
    {"role": "user", "content": "Thanks"},
]
TOOLS = [{"name": "f", "parameters": {"a": [1, None, {"é": "<&>"}], "b": {"c": True}}}]


def plain_jinja(template: str, **variables) -> str:
    """The environment of transformers, without a budget."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    return environment.from_string(template).render(documents=None, **variables)


@pytest.mark.parametrize("template", [CHATML, LLAMA3, BUSY], ids=["chatml", "llama3", "busy"])
@pytest.mark.parametrize("prompted", [True, False])
def test_renders_as_jinja_does(template, prompted):
    variables = {"bos_token": "<s>", "add_generation_prompt": prompted, "tools": TOOLS}
    expected = plain_jinja(template, messages=MESSAGES, **variables)
    assert render(template, MESSAGES, **variables) == expected


def test_atomaai_atoma_infer_227_the_header_of_the_answer_comes_by_default():
    prompt = render(LLAMA3, MESSAGES[:2], bos_token="<|begin_of_text|>")
    assert prompt.endswith("<|start_header_id|>assistant<|end_header_id|>\n\n")
    assert prompt.count("<|begin_of_text|>") == 1


def test_ggml_org_llama_cpp_15086_a_prefix_like_a_bos_is_kept():
    assert render("[gMask]<sop>{{ messages[1].content|trim }}", MESSAGES)[:12] == "[gMask]<sop>"


def test_a_token_that_the_model_lacks_is_undefined():
    assert render("{{ bos_token }}{{ eos_token is defined }}", []) == "False"


def test_keys_without_a_value_are_left_out_as_transformers_does():
    message = {"role": "user", "content": None}
    assert render("{{ messages[0] }}", [message]) == "{'role': 'user'}"


def test_further_variables_reach_the_template():
    assert render("{{ enable_thinking }}", [], enable_thinking=False) == "False"


def test_tojson_leaves_html_alone():
    x = {"b": "<é>", "a": 1}
    assert render("{{ x|tojson }}", [], x=x) == '{"b": "<é>", "a": 1}'
    options = "ensure_ascii=true, separators=(',', ':'), sort_keys=true"
    assert render(f"{{{{ x|tojson({options}) }}}}", [], x=x) == r'{"a":1,"b":"<\u00e9>"}'


def test_strftime_now_is_today():
    before = time.strftime("%Y-%m-%d")
    assert render("{{ strftime_now('%Y-%m-%d') }}", []) in (before, time.strftime("%Y-%m-%d"))


def test_generation_marks_print_what_is_between():
    assert render("a{% generation %}b{{ 1 }}{% endgeneration %}c", []) == "ab1c"


def test_mistralai_mistral_vibe_1006_the_templates_own_refusal_is_passed_on():
    refusal = "{{ raise_exception('No system role!') }}"
    template = f"{{% if messages[0].role == 'system' %}}{refusal}{{% endif %}}"
    with pytest.raises(TemplateError, match="No system role!") as caught:
        render(template, MESSAGES)
    assert isinstance(caught.value, ValueError)
    assert render(template, MESSAGES[1:]) == ""


@pytest.mark.parametrize(
    "template, words",
    [
        ("a\n{% if %}", "line 2"),
        ("{% for x in messages %}", "line 1"),
        ("{{ messages[9].content.x }}", "has no element 9"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{% include 'x' %}", "no loader"),
        ("{{ 'a'|nothing }}", "No filter named 'nothing'"),
        ("x" * 100_000, "100000 characters"),
    ],
)
def test_a_wrong_template_is_one_error(template, words):
    with pytest.raises(TemplateError, match=words):
        render(template, [])


@pytest.mark.parametrize("messages", ["abc", None, [5], ["a"], {"role": "user"}, 7])
def test_what_is_no_list_of_messages_is_refused_in_words(messages):
    with pytest.raises(TypeError, match=r"expected a list of dicts such as \{"):
        render(CHATML, messages)


def test_a_template_that_is_no_text_is_refused_in_words():
    with pytest.raises(TypeError, match="the chat template is None, expected a str"):
        render(None, [])


# ---- breaking out --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "template",
    [
        "{{ cycler.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages|attr('__class__') }}{{ (messages|attr('__class__')).x }}",
        "{{ raise_exception.__globals__.x }}",
        "{% set x = messages.clear() %}",
        "{{ strftime_now.__code__.co_code }}",
    ],
)
def test_cve_2024_34359_a_template_cannot_break_out(template):
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(TemplateError, match=r"unsafe|undefined|not safely callable"):
        render(template, messages)
    assert messages == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("expression", ["''.__class__", "'{0.__class__}'.format(1)"])
def test_cve_2024_34359_what_is_inside_shows_as_nothing(expression):
    assert render(f"{{{{ {expression} }}}}", []) == ""


def test_cve_2024_34359_there_is_no_other_jinja_environment():
    package = Path(render.__code__.co_filename).parents[1]
    texts = {path.name: path.read_text("utf-8") for path in package.rglob("*.py")}
    using = {name for name, text in texts.items() if re.search(r"(import|from) jinja2", text)}
    assert using == {"sandbox.py", "template.py"}
    made = re.findall(r"\w*(?:Environment|Template)\(", "".join(texts[name] for name in using))
    assert set(made) == {"BudgetedEnvironment("}
    assert "class BudgetedEnvironment(ImmutableSandboxedEnvironment)" in texts["sandbox.py"]


# ---- running away --------------------------------------------------------------------------------

SELF = "{% set a = ['x'] %}" + "{% set a = [a, a] %}" * 40
BIG = "{% set s = 'x' * 1000000 %}"
BOMBS = {
    # the four that were reported
    "range": "{% for i in range(1000000000) %}x{% endfor %}",
    "multiply": "{{ 'x' * 10000000000 }}",
    "macro calls itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "closing parentheses": "{{ " + ")" * 150 + " }}",
    # and their kin
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "not not not": "{{ " + "not " * 5000 + "1 }}",
    "nested ifs": "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
    "nested loops": "{% for i in range(99999) %}" * 3 + "{% set x = i %}" + "{% endfor %}" * 3,
    "much static text": "{% for i in range(99999) %}" + "x" * 60000 + "{% endfor %}",
    "into a variable": "{% set a %}{% for i in range(99999) %}{{ i }}{% endfor %}{% endset %}",
    "macro branches": "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "recursive loop": "{% for a in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
    "multiply later": "{% set n = 10000000000 %}{% set s = 'x' * n %}",
    "multiply a list": "{% set n = 10000000000 %}{% set s = n * [0] %}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "squares": "{% set x = 3 %}" + "{% set x = x * x %}" * 99,
    "double by ~": "{% set s = 'x' %}" + "{% set s = s ~ s %}" * 60,
    "double by +": "{% set s = 'x' %}" + "{% set s = s + s %}" * 60,
    "double by block": "{% set s = 'x' %}" + "{% set s %}{{ s }}{{ s }}{% endset %}" * 60,
    "list in itself": SELF + "{{ a }}",
    "list in itself, json": SELF + "{{ a|tojson }}",
    "list in itself, ~": SELF + "{% set b = a ~ '' %}",
    "list in itself, %": SELF + "{% set b = '%s' % [a] %}",
    "list in itself, format": SELF + "{% set b = '{}'.format(a) %}",
    "namespace in itself": SELF.replace("[a, a]", "namespace(a=a, b=a)") + "{{ a }}",
    "pad": "{{ 'x'.ljust(10000000000) }}",
    "center": "{{ 'x'|center(10000000000) }}",
    "indent": "{{ '\n\n'|indent(10000000000, true, true) }}",
    "json indent": "{{ [[1]]|tojson(indent=10000000000) }}",
    "width": "{{ '%10000000000d' % 1 }}",
    "computed width": "{{ '%*d' % (10000000000, 1) }}",
    "format width": "{{ '{:>10000000000}'.format(1) }}",
    "computed format width": "{{ '{:>{}}'.format(1, 10000000000) }}",
    "replace": BIG + "{{ s.replace('x', s) }}",
    "replace filter": BIG + "{{ s|replace('x', s) }}",
    "join": BIG + "{{ s.join(range(99999)) }}",
    "join one thing": BIG + "{{ ''.join(([s] * 9999)|select) }}",
    "join filter": BIG + "{{ ([s] * 9999)|select|join }}",
    "slices": BIG + "{% set l = [" + "s[1:], " * 2000 + "] %}",
    "slices in a list": BIG + "{% set l = [] %}" + "{% set l = l + [s[1:]] %}" * 999,
    "split": BIG + "{{ (s ~ ' ').split('x')|length }}",
    "list of characters": BIG + "{{ s|list|length }}",
    "sum of lists": "{{ ([[1]] * 99999)|sum(start=[])|length }}",
    "long filters": BIG + "{% for i in range(99999) %}{% set t = s|title %}{% endfor %}",
    "bytes": "{{ (5).to_bytes(10000000000, 'big') }}",
}

_RUN = """
import json, resource, sys, time
from rillm.chat.template import render
from rillm.errors import TemplateError
render("{{ 1 }}", [])
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
outcomes = {}
for name, template in json.load(sys.stdin).items():
    before, start = peak(), time.thread_time()
    try:
        outcome = f"rendered {len(render(template, []))} characters"
    except TemplateError as error:
        outcome = "TemplateError"
    outcomes[name] = outcome, time.thread_time() - start, peak() - before
json.dump(outcomes, sys.stdout)
"""


@pytest.fixture(scope="module")
def outcomes():
    """Of each bomb: what came, seconds of its thread, MiB that the process grew by."""
    limits = resource.RLIMIT_AS, (8 << 30, 8 << 30)
    ran = subprocess.run(
        [sys.executable, "-c", _RUN],
        input=json.dumps(BOMBS),
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(*limits),
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize("name", BOMBS)
def test_ggml_org_llama_cpp_24140_a_template_on_the_run_is_stopped(outcomes, name):
    outcome, seconds, mib = outcomes[name]
    assert outcome == "TemplateError"
    assert seconds < 1
    assert mib < 64


def test_a_long_conversation_is_within_the_budget():
    content = "A question about a thing that matters. " * 50
    messages = [{"role": role, "content": content} for role in ("user", "assistant")] * 1000
    assert render(BUSY, messages) == plain_jinja(BUSY, messages=messages)
