"""A wrong configuration is rejected in one line that names the key and what was expected."""

import inspect
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import robust
from fl.config import schema
from fl.config.checks import experiment, from_record, load
from fl.config.describe import describe, describe_markdown, sections
from fl.config.read import packaged_experiments, read_tables, to_toml
from fl.config.schema import BACKDOOR_OPTIONS
from fl.data import plant_backdoor
from fl.errors import ConfigError
from fl.training.models import MODELS
from fl.training.objective import ACCURACY, LOSSES, METRICS

DOCS = Path(__file__).parents[2] / "docs"


def test_names_in_the_configuration_are_those_of_the_code() -> None:
    assert set(schema.MODELS) == set(MODELS)
    assert set(schema.keys(schema.Aggregation)["rule"].choices) == {*robust.AGGREGATORS, "weighted-mean"}
    assert set(schema.keys(schema.Attack)["name"].choices) == {*robust.ATTACKS, *schema.DATA_ATTACKS}
    assert set(schema.LOSSES) == set(LOSSES)
    assert set(schema.METRICS) == {*METRICS, ACCURACY}


SURVIVORS = {"clusters": {"groups": "survivors"}, "privacy": {"memory": "round"}}


@pytest.mark.parametrize(
    ("tables", "key", "advice"),
    [
        ({"clientz": 3}, "clientz", "clients"),
        ({"attack": "sign_flip"}, "attack", 'expected a table, such as { name = "sign_flip" }'),
        ({"aggregation": "krum"}, "aggregation", 'expected a table, such as { rule = "krum" }'),
        ({"clusters": "5"}, "clusters", "expected a table, "),
        ({"clusters": {"sise": 3}}, "clusters.sise", "clusters.size"),
        ({"rounds": "5"}, "rounds", "whole number"),
        ({"rounds": 1.5}, "rounds", "whole number"),
        ({"rounds": True}, "rounds", "whole number"),
        ({"rounds": 0}, "rounds", "at least 1"),
        ({"secure": 1}, "secure", "true or false"),
        ({"name": 7}, "name", "text"),
        ({"server_lr": float("nan")}, "server_lr", "finite"),
        ({"participation": 0}, "participation", "more than 0"),
        ({"participation": 1.5}, "participation", "at most 1"),
        ({"clusters": 3}, "clusters", "table"),
        ({"dropout": {"schedule": 3}}, "dropout.schedule", "list"),
        ({"dropout": {"schedule": [{"clients": [1], "stage": "lunch"}]}}, "dropout.schedule[0].stage", "inputs"),
        ({"dropout": {"schedule": [{"clients": ["a"]}]}}, "dropout.schedule[0].clients[0]", "whole number"),
        ({"dropout": {"schedule": [{"clients": [99]}]}}, "dropout.schedule[0].clients", "0 to 29"),
        ({"aggregation": {"rule": "krumm"}}, "aggregation.rule", "krum"),
        ({"aggregation": {"options": {"speed": 3}}}, "aggregation.options.speed", "no such parameter"),
        ({"aggregation": {"options": {"speed": [3]}}}, "aggregation.options.speed", "number"),
        ({"aggregation": {"f": 1, "fraction": 0.2}}, "aggregation.fraction", "not both"),
        ({"aggregation": {"rule": "weighted-mean", "options": {"a": 1}}}, "aggregation.options", "no parameters"),
        ({"attack": {"name": "sign_flip"}}, "attack.name", "byzantine"),
        ({"byzantine": 3}, "byzantine", "attack"),
        ({"byzantine": 31, "attack": {"name": "sign_flip"}}, "byzantine", "30 clients"),
        ({"byzantine": 3, "attack": {"name": "sign_flip", "options": {"skale": 2}}}, "attack.options.skale", "scale"),
        ({"byzantine": 3, "attack": {"name": "label-flip", "options": {"scale": 2}}}, "attack.options", "none"),
        (
            {"byzantine": 2, "attack": {"name": "sign_flip", "options": {"scale": "a"}}},
            "attack.options",
            "sign_flip: scale='a' is not float; it takes scale: float = 1.0",
        ),
        (
            {"byzantine": 2, "attack": {"name": "a_little_is_enough", "options": {"knows": "all"}}},
            "attack.options",
            "knows='all' is not 'honest' or 'own'",
        ),
        (
            {"aggregation": {"before": ["bucketing"], "before_options": {"size": "a"}}},
            "aggregation.before_options",
            "bucketing: size='a' is not int",
        ),
        (
            {"method": "fedavg", "aggregation": {"before": ["clipping"], "before_options": {"radius": True}}},
            "aggregation.before_options",
            "clipping: radius=True is not float",
        ),
        ({"data": {"name": "imagenet"}}, "data.name", "digits"),
        ({"data": {"roles": 3}}, "data.roles", "shakespeare"),
        ({"data": {"partition": "role"}}, "data.partition", "digits"),
        ({"model": "resnet"}, "model", "module:function"),
    ],
)
def test_a_mistake_names_its_key_and_what_was_expected(tables: dict, key: str, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        experiment(tables)
    assert str(caught.value).startswith(f"{key}:") or str(caught.value).startswith(f"{key}.")
    assert advice in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{"size": "a"}, {"size": 1.5}, {"target": True}, {"share": "x"}])
def test_options_of_a_backdoor_are_checked_before_anything_is_trained(options: dict) -> None:
    ((name, value),) = options.items()
    with pytest.raises(ConfigError) as refused:
        experiment(byzantine=2, attack={"name": "backdoor", "options": options})
    kind = "float" if name == "share" else "int"
    assert str(refused.value) == (
        f"attack.options: backdoor: {name}={value!r} is not {kind}; it takes target: int = 0, size: int = 2, share: "
        "float = 0.5"
    )


def test_a_rule_that_is_not_used_may_miss_what_it_needs() -> None:
    assert experiment(method="fedavg", aggregation={"rule": "monna"}).method == "fedavg"
    with pytest.raises(ConfigError, match=r"^aggregation\.options: monna needs trusted"):
        experiment(aggregation={"rule": "monna"})
    with pytest.raises(ConfigError, match=r"^aggregation\.options: monna: trusted='a' is not int"):
        experiment(method="fedavg", aggregation={"rule": "monna", "options": {"trusted": "a"}})


@pytest.mark.parametrize("method", ["share", "fedavg"])
def test_a_run_whose_options_had_other_types_can_still_be_read(method: str) -> None:
    """Earlier versions trained these."""
    options = {"target": 1.0}
    tables = {"method": method, "byzantine": 2, "attack": {"name": "backdoor", "options": options}}
    assert from_record(tables).attack.options == options
    with pytest.raises(ConfigError, match=r"backdoor: target=1\.0 is not int"):
        experiment(tables)


def test_defaults_of_a_backdoor_are_those_of_the_function() -> None:
    found = inspect.signature(plant_backdoor).parameters
    assert {name: found[name].default for name in BACKDOOR_OPTIONS} == {
        name: one.default for name, one in BACKDOOR_OPTIONS.items()
    }


@robust.attack
def strict_attack(given: robust.AttackInput, *, size: float) -> robust.Matrix:
    return given.all_send(size * given.honest[0])


robust.ATTACKS.remove("strict_attack")


@pytest.mark.parametrize(
    ("options", "advice"), [({"size": "a"}, "size='a' is not float"), ({}, "needs size; it takes size: float")]
)
def test_options_of_an_own_attack_are_checked_before_anything_is_trained(options: dict, advice: str) -> None:
    named = {"name": "tests.fl.test_config:strict_attack"}
    with pytest.raises(ConfigError, match=rf"^attack\.options: strict_attack:? {advice}"):
        experiment(byzantine=2, attack={**named, "options": options})
    assert experiment(byzantine=2, attack={**named, "options": {"size": 2}}).attack.options == {"size": 2}


@pytest.mark.parametrize(
    ("tables", "key", "advice"),
    [
        # The paper's own default exposes all clients.
        ({"clients": 60, "clusters": {"size": 3, "groupings": 10}}, "clusters.groupings", "expose 60 of 60"),
        ({"clusters": {"size": 2}}, "clusters.size", "at least 3"),
        ({"clusters": {"size": 1}}, "clusters.size", "no-share"),
        ({"method": "no-share"}, "method", "privacy.expose_every_client"),
        ({"clusters": {"size": 31}}, "clusters", "30 clients"),
        ({"clusters": {"schedule": "atoms", "size": 6, "atom": 4}}, "clusters", "multiple of atom 4"),
        ({"clusters": {"schedule": "atoms"}}, "clusters", "atom"),
        ({"clusters": {"schedule": "transversal", "size": 3, "groupings": 4}}, "clusters", "groupings"),
        ({**SURVIVORS, "participation": 0.5}, "participation", "random"),
        ({"clusters": {**SURVIVORS["clusters"], "cell": 2}, "privacy": {"memory": "round"}}, "clusters", "cell"),
        ({"clusters": {"schedule": "random"}}, "privacy.memory", 'memory = "round"'),
        ({"clusters": {"schedule": "transversal", "groupings": 2}}, "privacy.memory", '"fixed" or "atoms"'),
        ({"clusters": {"groups": "survivors"}}, "privacy.memory", 'groups = "whole"'),
        ({"clusters": {"size": 6, "groupings": 2}, "participation": 0.5}, "participation", "atoms"),
        ({"aggregation": {"rule": "krum", "f": 5}}, "aggregation.f", "krum"),
        ({"aggregation": {"rule": "trimmed_mean", "f": 5}}, "aggregation.f", "trimmed_mean"),
        ({"aggregation": {"rule": "zeno"}}, "data.validation", "0.05"),
        ({**SURVIVORS, "privacy": {"memory": "round", "threshold": 10}}, "privacy", "threshold"),
        ({"privacy": {"max_leverage": 0.3}}, "clusters.groupings", "max_leverage"),
    ],
)
def test_an_unsafe_combination_is_rejected_with_advice(tables: dict, key: str, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        experiment(tables)
    assert str(caught.value).startswith(f"{key}:")
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        ({"clusters": {"cell": 100}}, "clusters.cell"),
        ({"privacy": {"threshold": 22}}, "privacy.threshold"),
        ({"privacy": {"colluders": 2}}, "privacy.colluders"),
        ({"dropout": {"stage": "unmasking"}}, "dropout.stage"),
        ({"dropout": {"schedule": [{"clients": [1]}, {"clients": [2], "stage": "keys"}]}}, "dropout.schedule[1].stage"),
        ({"byzantine": 1, "attack": {"protocol": "wrong-shares"}}, "attack.protocol"),
    ],
)
def test_what_belongs_to_survivors_is_refused_with_whole_groups(tables: dict, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        experiment(tables)
    assert str(caught.value).startswith(f"{key}: ")
    assert 'clusters.groups = "survivors"' in str(caught.value)
    recovered = {**tables, "clusters": {**tables.get("clusters", {}), **SURVIVORS["clusters"]}}
    privacy = {**tables.get("privacy", {}), **SURVIVORS["privacy"]}
    assert experiment({**recovered, "privacy": privacy}).groups == "survivors"
    assert experiment({**tables, "method": "fedavg"}).groups == "survivors"


def test_the_defaults_hide_every_client_in_whole_fixed_clusters_over_all_rounds() -> None:
    chosen = experiment()
    assert (chosen.groups, chosen.clusters.schedule, chosen.privacy.memory) == ("whole", "fixed", "training")
    assert (chosen.privacy.audit, chosen.privacy.max_leverage) == ("enforce", 0.5)


def test_the_advice_about_too_many_groupings_can_be_followed() -> None:
    with pytest.raises(ConfigError) as caught:
        experiment(clients=60, clusters={"size": 3, "groupings": 10})
    assert "schedule = 'fixed' allows groupings = 1;" in str(caught.value)
    experiment(clients=60, clusters={"size": 3})
    with pytest.raises(ConfigError, match="schedule = 'transversal' allows groupings = 2"):
        experiment(clients=60, clusters={"size": 5, "groupings": 9, "schedule": "random"}, privacy={"memory": "round"})
    experiment(clients=60, clusters={"size": 5, "groupings": 2, "schedule": "transversal"}, privacy={"memory": "round"})
    assert "schedule = 'atoms' with atom = 3 and size = 6 allows any number" in str(caught.value)
    experiment(clients=60, clusters={"size": 6, "groupings": 10, "schedule": "atoms", "atom": 3})


def test_exposing_groupings_run_only_when_reporting_is_chosen_by_name() -> None:
    chosen = experiment(clients=60, clusters={"size": 3, "groupings": 10}, privacy={"audit": "report-even-if-exposed"})
    assert chosen.privacy.audit == "report-even-if-exposed"
    with pytest.raises(ConfigError, match=r"privacy\.audit"):
        experiment(privacy={"audit": "report"})


values = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20),
        "seed": st.integers(0, 2**63 - 1),
        "rounds": st.integers(1, 10**5),
        "server_lr": st.floats(1e-6, 1e6),
        "secure": st.booleans(),
        "privacy": st.fixed_dictionaries({}, optional={"clip": st.floats(1e-3, 9), "max_leverage": st.floats(0.4, 1)}),
        "stop": st.fixed_dictionaries({}, optional={"accuracy": st.floats(0.01, 1), "patience": st.integers(1, 9)}),
        "dropout": st.fixed_dictionaries(
            {"schedule": st.lists(st.fixed_dictionaries({"round": st.integers(1, 9), "clients": st.just([1, 2])}))}
        ),
    },
)


@settings(deadline=None, max_examples=30)
@given(values)
def test_what_is_written_reads_back_the_same(tables: dict) -> None:
    written = experiment(tables)
    assert experiment(tomllib.loads(to_toml(written))) == written


def test_settings_of_the_command_line_change_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('rounds = 3\n[clusters]\nsize = 5\n[curves]\nsmall = { "clusters.size" = 3, seed = 4 }\n')
    assert load(file).name == "mine"
    assert load(file).clusters.size == 5
    small = load(file, ["rounds=7", "aggregation.rule=mean", "name=other"], "small")
    assert (small.clusters.size, small.seed, small.rounds) == (3, 4, 7)
    assert (small.aggregation.rule, small.name) == ("mean", "other")
    assert load(file, curve="small").name == "mine-small"
    for settings_, words in ((["rounds"], "key=value"), (["rounds.deep=1"], "not a table"), (["x=1"], "no such key")):
        with pytest.raises(ConfigError, match=words):
            load(file, settings_)
    with pytest.raises(ConfigError, match="no curve 'smal'; did you mean small"):
        load(file, curve="smal")


def test_a_file_that_is_missing_or_broken_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no"):
        load(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("rounds = = 3")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load(tmp_path / "broken.toml")
    with pytest.raises(ConfigError):
        load(tmp_path)


@pytest.mark.parametrize("name", packaged_experiments())
def test_all_packaged_experiments_and_their_curves_are_valid(name: str) -> None:
    assert load(name).name == name
    for curve in read_tables(name).get("curves", {}):
        assert load(name, curve=curve).name == f"{name}-{curve}"


def test_the_reference_in_the_docs_is_the_one_the_code_makes() -> None:
    assert (DOCS / "configuration.md").read_text("utf-8") == describe_markdown()


def test_every_key_says_what_it_means() -> None:
    text = describe()
    for path, about, keys in sections():
        assert about.endswith("."), path
        for key in keys:
            assert key.about, key.name
            assert f"{path}.{key.name}".removeprefix(".") in text


def test_a_change_that_can_change_the_model_changes_the_fingerprint() -> None:
    base = experiment()
    for same in (
        {"name": "x"},
        {"secure": False},
        {"rounds": 5},
        {"machine": {"workers": 1}},
        {"stop": {"patience": 3}},
    ):
        assert experiment(same).fingerprint == base.fingerprint
    for other in (
        {"seed": 1},
        {"clients": 33},
        {"local": {"lr": 0.5}},
        {"privacy": {"clip": 4.0}},
        {"model": "linear"},
    ):
        assert experiment(other).fingerprint != base.fingerprint
