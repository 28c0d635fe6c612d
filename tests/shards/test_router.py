"""The router: what is refused when it is built, where a new run is placed, and what the environment says of it."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvest.errors import ConfigurationError, NoWritableShardError, PlacementError, ShardUnavailableError
from harvest.history.ids import RESERVED_SHARD, mint_execution_id, pick_shard
from harvest.shards import AUTOMATIC, Placement, ShardRouter, configured, warn_at_boot

EU_US = ShardRouter(readable=(0, 1), writable=(0, 1), default=0, residency={"eu": 0, "us": 1})
CELLS = ShardRouter(readable=(0, 1, 2, 3), writable=(0, 1, 2), default=0, reserved=(2,), residency={"cell-a": 2})


def router(**more: Any) -> ShardRouter:
    """A router over the shards 0, 1 and 2, all writable, but for what a test says."""
    return ShardRouter(**{"readable": (0, 1, 2), "writable": (0, 1, 2), "default": 0, **more})


@pytest.mark.parametrize(
    ("wrong", "field", "said"),
    [
        ({"readable": (), "writable": ()}, "readable", "no shard is configured"),
        ({"readable": (0, 1), "writable": (0, 2)}, "writable", "shard 2 is writable but not readable"),
        ({"reserved": (5,)}, "reserved", "shard 5 is reserved but not readable"),
        ({"default": 7}, "default", "the default shard 7 is not among the readable shards 0, 1, 2"),
        ({"reserved": (0,)}, "reserved", "shard 0 is the default and reserved"),
        ({"writable": (1,), "reserved": (1,)}, "reserved", "every writable shard is reserved"),
        ({"residency": {"": 0}}, "residency", "must not be blank"),
        ({"residency": {" \t": 0}}, "residency", "must not be blank"),
        ({"residency": {"k" * 129: 0}}, "residency", "has 129 characters; at most 128"),
        ({"residency": {"a\nb": 0}}, "residency", "cannot be seen"),
        ({"residency": {"eu": 9}}, "residency", "residency key 'eu' leads to shard 9"),
        ({"readable": (0, 1, 1)}, "readable", "name one of them twice"),
        ({"writable": (0, 0)}, "writable", "name one of them twice"),
        ({"reserved": (2, 2)}, "reserved", "name one of them twice"),
        ({"readable": (0, 65535)}, "readable", "numbered 0 to 65534"),
        ({"readable": (0, -1)}, "readable", "numbered 0 to 65534"),
        ({"forwards": {65535: 0}}, "forwards", "numbered 0 to 65534"),
        ({"forwards": {1: 0}}, "forwards", "shard 1 is forwarded to 0 but is readable"),
        ({"forwards": {7: 9}}, "forwards", "shard 7 is forwarded to 9, which is not readable"),
        ({"forwards": {7: 8, 8: 7}}, "forwards", "shard 7 is forwarded in a circle"),
        ({"forwards": {7: 7}}, "forwards", "shard 7 is forwarded in a circle"),
        ({"forwards": {5: 6, 6: 7, 7: 8, 8: 9, 9: 0}}, "forwards", "circle, or over more than 4 steps"),
    ],
)  # fmt: skip
def test_a_router_that_cannot_be_is_refused_with_its_reason(wrong: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said.replace("(", r"\(")) as refused:
        router(**wrong)
    assert refused.value.fields["field"] == field


def test_what_a_rollout_passes_through_is_allowed() -> None:
    router(writable=())
    router(writable=(), reserved=(1, 2))
    router(residency={"eu": 2}, writable=(0, 1))
    router(forwards={5: 6, 6: 7, 7: 8, 8: 0})
    router(residency={"k" * 128: 0})


def test_a_new_field_of_the_router_is_in_the_topology_that_processes_compare() -> None:
    named = {"default": "default_shard", "residency": "residency_map", "forwards": "shard_forwards"}
    expected = {named.get(name, f"{name}_shards") for name in ShardRouter.__struct_fields__}
    assert list(EU_US.topology()) == sorted(expected)


def test_the_digest_depends_on_each_field_and_on_no_order() -> None:
    same = router(readable=(2, 0, 1), writable=(1, 2, 0), residency={"us": 1, "eu": 0})
    assert same.digest == router(residency={"eu": 0, "us": 1}).digest
    others = [
        router(),
        router(writable=(0, 1)),
        router(default=1),
        router(residency={"eu": 0}),
        router(residency={"eu": 1}),
        router(reserved=(2,)),
        router(forwards={7: 0}),
        router(readable=(0, 1, 2, 3)),
    ]
    assert len({each.digest for each in others}) == len(others)


@pytest.mark.parametrize(
    ("placement", "field", "reason", "said"),
    [
        (Placement(shard_id=9), "shard_id", "unknown_shard", "shard 9 is not a placeable shard for this deployment"),
        (
            Placement(shard_id=3),
            "shard_id",
            "draining",
            "shard 3 is not currently accepting new workflows; it is being drained",
        ),
        (
            Placement(residency_key="mars"),
            "residency_key",
            "undeclared_key",
            "residency key 'mars' is not declared for this deployment",
        ),
        (Placement(residency_key=""), "residency_key", "blank_key", "residency key must not be blank"),
        (Placement(residency_key=" \n"), "residency_key", "blank_key", "residency key must not be blank"),
        (
            Placement(residency_key="k" * 129),
            "residency_key",
            "key_too_long",
            "the residency key has 129 characters; at most 128 are allowed",
        ),
        (
            Placement(0, "cell-a"),
            "shard_id",
            "both",
            "shard_id and residency_key exclude each other: give one of them",
        ),
        (Placement(shard_id=-1), "shard_id", "out_of_range", "shard_id is -1; shards are numbered 0 to 65534"),
        (Placement(shard_id=65535), "shard_id", "out_of_range", "shard_id is 65535; shards are numbered 0 to 65534"),
    ],
)
def test_each_wish_that_is_not_granted_is_refused_in_its_words(
    placement: Placement, field: str, reason: str, said: str
) -> None:
    with pytest.raises(PlacementError) as refused:
        CELLS.resolve("flow", "a", placement)
    assert (refused.value.message, refused.value.fields) == (said, {"field": field, "reason": reason})


def test_a_refusal_by_residency_names_the_key_and_not_where_it_leads() -> None:
    drained = router(writable=(0,), residency={"eu": 2})
    with pytest.raises(PlacementError) as refused:
        drained.resolve("flow", "a", Placement(residency_key="eu"))
    assert refused.value.message == (
        "residency key 'eu' is not currently accepting new workflows; its shard is being drained"
    )
    assert refused.value.fields == {"field": "residency_key", "reason": "draining"}


def test_what_is_configured_is_in_the_log_of_a_refusal_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "harvest.shards"), pytest.raises(PlacementError) as refused:
        CELLS.place("flow", "a", Placement(residency_key="mars"))
    assert "cell-a" not in str(refused.value)
    (record,) = caplog.records
    assert "'mars' is not declared" in record.getMessage()
    assert "'residency_map': {'cell-a': 2}" in record.getMessage()
    assert "'writable_shards': [0, 1, 2]" in record.getMessage()


def test_looking_where_a_run_would_go_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "harvest.shards"), pytest.raises(PlacementError):
        CELLS.resolve("flow", "a", Placement(shard_id=9))
    assert caplog.records == []


def test_what_may_be_there_already_is_found_on_a_shard_that_drains() -> None:
    assert CELLS.resolve("flow", "a", Placement(shard_id=3), repeats=True) == 3
    with pytest.raises(PlacementError):
        CELLS.resolve("flow", "a", Placement(shard_id=9), repeats=True)


@given(key=st.text(max_size=40))
def test_a_residency_key_leads_to_its_shard_whatever_the_id_and_however_the_shards_widen(key: str) -> None:
    for widened in (EU_US, router(residency=EU_US.residency), router(readable=tuple(range(9)), residency={"us": 1})):
        assert widened.resolve("flow", key, Placement(residency_key="us")) == 1


@given(key=st.text(max_size=40))
def test_without_a_placement_the_hash_decides_as_before(key: str) -> None:
    assert (
        router().resolve("flow", key) == router().resolve("flow", key, AUTOMATIC) == pick_shard((0, 1, 2), "flow", key)
    )


@given(key=st.text(max_size=40))
def test_a_drain_and_a_reservation_move_only_what_hashed_to_that_shard(key: str) -> None:
    before = pick_shard((0, 1, 2), "flow", key)
    for after in (router(writable=(0, 1)).pick("flow", key), router(reserved=(2,)).pick("flow", key)):
        assert after == before if before != 2 else after in (0, 1)


def test_widening_moves_about_its_share_of_the_keys_and_all_of_those_to_the_new_shard() -> None:
    narrow, wide = router(), router(readable=(0, 1, 2, 3), writable=(0, 1, 2, 3))
    moved = [(narrow.pick("flow", str(n)), wide.pick("flow", str(n))) for n in range(4_000)]
    changed = [after for before, after in moved if before != after]
    assert set(changed) == {3}
    assert 850 < len(changed) < 1_150


def test_the_shards_get_about_equally_many_keys() -> None:
    counts = Counter(router().pick("flow", str(n)) for n in range(6_000))
    assert all(1_800 < count < 2_200 for count in counts.values()), counts


def test_nothing_unpinned_lands_on_a_reserved_shard_and_a_placement_reaches_it() -> None:
    assert {CELLS.pick("flow", str(n)) for n in range(500)} == {0, 1}
    assert CELLS.resolve("flow", "a", Placement(shard_id=2)) == 2
    assert CELLS.resolve("flow", "a", Placement(residency_key="cell-a")) == 2


def test_with_every_shard_draining_a_start_is_unavailable_and_not_wrong() -> None:
    drained = router(writable=())
    with pytest.raises(NoWritableShardError):
        drained.resolve("flow", "a")
    assert NoWritableShardError.status == 503
    with pytest.raises(PlacementError, match="being drained"):
        drained.resolve("flow", "a", Placement(shard_id=0))


@pytest.mark.parametrize("shard_id", [0, 1])
def test_an_id_made_for_a_shard_leads_to_it(shard_id: int) -> None:
    made = {CELLS.id_for("flow", shard_id, (f"{stem}-{n}" for n in itertools.count())) for stem in range(50)}
    assert len(made) == 50
    assert {CELLS.pick("flow", each) for each in made} == {shard_id}


@pytest.mark.parametrize("shard_id", [2, 3])
def test_to_a_shard_that_is_reserved_or_drains_the_first_id_goes(shard_id: int) -> None:
    assert CELLS.id_for("flow", shard_id, (str(n) for n in itertools.count())) == "0"


def test_an_id_that_somebody_chose_is_kept() -> None:
    assert {router().id_for("flow", shard, ["mine"]) for shard in (0, 1, 2)} == {"mine"}


def test_a_run_is_found_where_its_id_says_over_four_forwards() -> None:
    chain = router(forwards={5: 6, 6: 7, 7: 8, 8: 1})
    assert [chain.locate(mint_execution_id(shard)) for shard in (2, 8, 5)] == [2, 1, 1]


def test_a_run_of_an_unknown_shard_is_unavailable_and_never_looked_for_elsewhere() -> None:
    with pytest.raises(ShardUnavailableError, match="started on shard 9, which this deployment does not read"):
        router().locate(mint_execution_id(9))


def test_the_reserved_number_means_the_default_shard() -> None:
    unencoded = type(mint_execution_id(0))(int=(RESERVED_SHARD << 112) | (mint_execution_id(0).int & ((1 << 112) - 1)))
    assert router(default=2).locate(unencoded) == 2


def described(shards: tuple[int, ...] = (0, 1, 2), **variables: str) -> ShardRouter:
    """The router of these HARVEST_… variables."""
    return configured({f"HARVEST_{name}": value for name, value in variables.items()}, shards)


def test_without_variables_every_database_is_readable_and_writable() -> None:
    assert described((2, 0)) == ShardRouter(readable=(0, 2), writable=(0, 2), default=0)


def test_the_variables_say_everything() -> None:
    found = described(
        READABLE_SHARDS="0, 1,2",
        WRITABLE_SHARDS="0,2",
        RESERVED_SHARDS="2",
        DEFAULT_SHARD="1",
        RESIDENCY_MAP="eu=0, us=1,cell=a=2,",
        SHARD_FORWARDS="7=0",
    )
    assert msgspec.structs.asdict(found) == {
        "readable": (0, 1, 2),
        "writable": (0, 2),
        "default": 1,
        "residency": {"eu": 0, "us": 1, "cell=a": 2},
        "reserved": (2,),
        "forwards": {7: 0},
    }


def test_the_default_is_the_lowest_that_is_not_reserved() -> None:
    assert described(RESERVED_SHARDS="0").default == 1


def test_set_to_nothing_is_not_set_and_none_is_the_empty_list() -> None:
    assert described(WRITABLE_SHARDS=" ", RESIDENCY_MAP="").writable == (0, 1, 2)
    assert described(WRITABLE_SHARDS="none").writable == ()


def test_a_shard_may_be_readable_before_it_has_a_database() -> None:
    assert described((0, 1), READABLE_SHARDS="0,1,2").readable == (0, 1, 2)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"READABLE_SHARDS": "0,x"}, "HARVEST_READABLE_SHARDS has 'x' where the number of a shard must be"),
        ({"READABLE_SHARDS": "0,,1"}, "HARVEST_READABLE_SHARDS has ''"),
        ({"READABLE_SHARDS": "none"}, "HARVEST_READABLE_SHARDS: no shard is configured"),
        ({"WRITABLE_SHARDS": "-1"}, "HARVEST_WRITABLE_SHARDS has '-1'"),
        ({"WRITABLE_SHARDS": "9" * 5000}, "HARVEST_WRITABLE_SHARDS has '999"),
        ({"WRITABLE_SHARDS": "0,5"}, "HARVEST_WRITABLE_SHARDS: shard 5 is writable but not readable"),
        ({"RESERVED_SHARDS": "9"}, "HARVEST_RESERVED_SHARDS: shard 9 is reserved but not readable"),
        ({"RESERVED_SHARDS": "0,1,2"}, "HARVEST_RESERVED_SHARDS: shard 0 is the default and reserved"),
        ({"RESERVED_SHARDS": "1", "WRITABLE_SHARDS": "1"}, "HARVEST_RESERVED_SHARDS: every writable shard is reserved"),
        ({"DEFAULT_SHARD": "4"}, "HARVEST_DEFAULT_SHARD: the default shard 4 is not among the readable shards"),
        ({"DEFAULT_SHARD": "0,1"}, "HARVEST_DEFAULT_SHARD must be one number"),
        ({"DEFAULT_SHARD": "70000"}, "HARVEST_DEFAULT_SHARD: the default shard 70000 is not"),
        ({"RESIDENCY_MAP": "eu"}, "HARVEST_RESIDENCY_MAP has the part 'eu'; it must look like key=shard"),
        ({"RESIDENCY_MAP": "eu=west"}, "HARVEST_RESIDENCY_MAP has 'west' where the number of a shard must be"),
        ({"RESIDENCY_MAP": "eu=0,eu=1"}, "HARVEST_RESIDENCY_MAP names 'eu' twice"),
        ({"RESIDENCY_MAP": "=0"}, "HARVEST_RESIDENCY_MAP: the residency map has a key that cannot be one"),
        ({"RESIDENCY_MAP": f"{'k' * 129}=0"}, "HARVEST_RESIDENCY_MAP: the residency map has a key that cannot be one"),
        ({"RESIDENCY_MAP": "eu=7"}, "HARVEST_RESIDENCY_MAP: residency key 'eu' leads to shard 7"),
        ({"SHARD_FORWARDS": "a=0"}, "HARVEST_SHARD_FORWARDS has 'a' where the number of a shard must be"),
        ({"SHARD_FORWARDS": "7=8,8=7"}, "HARVEST_SHARD_FORWARDS: shard 7 is forwarded in a circle"),
    ],
)
def test_a_variable_that_cannot_be_is_named_with_what_is_wrong(variables: Mapping[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        described(**variables)
    assert refused.value.message.startswith(said)
    assert len(refused.value.message) < 250


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("WRITEABLE_SHARDS", "did you mean HARVEST_WRITABLE_SHARDS?"),
        ("RESIDENCY_MAPS", "did you mean HARVEST_RESIDENCY_MAP?"),
        ("SHARD_FORWARD", "did you mean HARVEST_SHARD_FORWARDS?"),
        ("SHARD_ASSIGNMENTS", "did you mean HARVEST_WORKER_SHARD_ASSIGNMENTS?"),
        ("FORWARDING_OF_WHAT_IS_GONE", "there are HARVEST_READABLE_SHARDS, "),
    ],
)
def test_a_variable_about_shards_that_nobody_reads_is_refused_with_the_one_that_is_meant(
    name: str, remedy: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        described(**{name: ""})
    assert refused.value.message.startswith(f"there is no setting HARVEST_{name}; {remedy}")


def test_variables_of_workers_of_services_and_of_other_things_are_left_to_them() -> None:
    others = ("WORKER_SHARD_ASSIGNMENTS", "DATABASE_URLS", "SHARD_1_SERVICE_HOST", "SHARD_1_SERVICE_PORT_POSTGRES")
    ports = ("SHARD_1_PORT", "SHARD_1_PORT_5432_TCP", "SHARD_1_PORT_5432_TCP_ADDR")
    assert described(**dict.fromkeys((*others, *ports), "1")) == described()
    assert configured({"MY_SHARDS": "1"}, (0,)) == configured({}, (0,))


def test_what_is_worth_a_word_at_boot_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    rolling = router(writable=(), residency={"eu": 2})
    with caplog.at_level(logging.WARNING, "harvest.shards"):
        warn_at_boot(rolling, (0, 1, 5))
    assert [record.getMessage() for record in caplog.records] == [
        "shard 2 is readable but has no database here; of a worker here, deliveries to it wait",
        "shard 5 has a database here but is not readable",
        "residency key 'eu' leads to shard 2, which takes no new workflows: starts are refused",
        "no shard is writable: every start is refused",
    ]
    caplog.clear()
    warn_at_boot(EU_US, (0, 1))
    assert caplog.records == []
