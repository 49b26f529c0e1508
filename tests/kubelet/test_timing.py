"""When things happen to a pod: probes, restarts, grace periods and deadlines to the second, in
virtual time."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from kubelet import Did
from kubelet.scripted import KILLED, Life, ScriptedMachine, World, play, scripted

FOREVER = [Life()]
DEAF = [Life(after_term_s=None)]


def spec(*containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"containers": list(containers), **more}


def probe(command: str = "ask", **more: Any) -> dict[str, Any]:
    return {"exec": {"command": [command]}, **more}


def yes_from(second: float) -> ScriptedMachine:
    """A program that runs for ever, and whose probe says yes from a second on."""
    return ScriptedMachine({"main": FOREVER}, {"ask": lambda now: int(now < second)})


def test_back_off_doubles_up_to_five_minutes(tmp_path: Path) -> None:
    """A container that fails is started again at once, then after 10, 20, 40 … and never more than
    300 s."""
    machine = ScriptedMachine({"main": [Life(1.0, code=1)]})
    world = play(tmp_path, machine, spec(scripted("main")), until_s=1000)
    starts = world.when(Did.START)
    waits = [round(later - earlier - 1) for earlier, later in itertools.pairwise(starts)]
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]
    assert world.pod.main[0].restarts == len(starts) - 1


@pytest.mark.parametrize(
    ("policy", "lives", "phase", "starts"),
    [
        ("Never", [Life(1.0, code=3)], "Failed", [0]),
        ("OnFailure", [Life(1.0, code=3), Life(1.0)], "Succeeded", [0, 1]),
        ("Always", [Life(1.0), Life(1.0)], "Running", [0, 1, 12]),
    ],
)
def test_a_restart_policy_decides(
    policy: str, lives: list[Life], phase: str, starts: list[float], tmp_path: Path
) -> None:
    """Never runs once, OnFailure until an exit code of 0, Always whatever the exit code."""
    world = play(
        tmp_path,
        ScriptedMachine({"main": lives}),
        spec(scripted("main"), restartPolicy=policy),
        until_s=13,
    )
    assert world.when(Did.START) == starts
    assert world.pod.phase == phase


def test_an_exit_code_is_in_the_status(tmp_path: Path) -> None:
    """A container's last exit code is that of its process, and one other than 0 is an Error that
    fails the pod."""
    world = play(
        tmp_path,
        ScriptedMachine({"main": [Life(1.0, code=42)]}),
        spec(scripted("main"), restartPolicy="Never"),
    )
    (status,) = world.pod.status["containerStatuses"]
    assert (status["state"]["terminated"]["exitCode"], status["state"]["terminated"]["reason"]) == (
        42,
        "Error",
    )
    assert world.pod.status["phase"] == "Failed"


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    """A command that cannot be started leaves the container waiting, with the error in its
    status."""
    world = play(tmp_path, ScriptedMachine(), spec(scripted("main"), restartPolicy="Never"))
    assert world.pod.main[0].state == {
        "waiting": {"reason": "RunContainerError", "message": "no such program: main"}
    }


def test_liveness_is_asked_by_its_own_times(tmp_path: Path) -> None:
    """The first question comes after initialDelaySeconds, the next ones every periodSeconds; the
    threshold ends the process."""
    machine = yes_from(10_000)
    liveness = probe(initialDelaySeconds=5, periodSeconds=10, failureThreshold=3)
    world = play(tmp_path, machine, spec(scripted("main", livenessProbe=liveness)), until_s=30)
    assert machine.asked[:3] == [("ask", 5), ("ask", 15), ("ask", 25)]
    assert (world.when(Did.TERM), world.when(Did.START)) == ([25], [0, 25])


def test_an_answer_between_failures_starts_the_count_anew(tmp_path: Path) -> None:
    """Only failures in a row restart a container: one yes between them and it lives on."""
    machine = ScriptedMachine({"main": FOREVER}, {"ask": lambda now: int(round(now) % 30 != 20)})
    liveness = probe(periodSeconds=10, failureThreshold=3)
    world = play(tmp_path, machine, spec(scripted("main", livenessProbe=liveness)), until_s=200)
    assert (len(machine.asked), world.when(Did.TERM)) == (20, [])


def test_defaults_are_those_of_kubernetes(tmp_path: Path) -> None:
    """Without times of its own a probe asks every 10 s from the start, and its third failure in a
    row counts."""
    machine = yes_from(10_000)
    world = play(tmp_path, machine, spec(scripted("main", livenessProbe=probe())), until_s=25)
    assert [at for _, at in machine.asked[:3]] == [0, 10, 20]
    assert world.when(Did.TERM) == [20]


def test_a_start_holds_the_other_probes_back(tmp_path: Path) -> None:
    """Liveness and readiness are asked only from the moment when the startup probe has said yes."""
    machine = ScriptedMachine(
        {"main": FOREVER},
        {"up": lambda now: int(now < 20), "live": lambda _: 0, "ready": lambda _: 0},
    )
    main = scripted(
        "main", startupProbe=probe("up"), livenessProbe=probe("live"), readinessProbe=probe("ready")
    )
    world = play(tmp_path, machine, spec(main), until_s=25)
    assert [at for name, at in machine.asked if name == "up"] == [0, 10, 20]
    assert {at for name, at in machine.asked if name != "up"} == {20}
    assert (world.when(Did.UP), world.when(Did.READY)) == ([20], [20])


def test_a_start_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """After failureThreshold questions without a yes the container is restarted, its liveness never
    asked."""
    machine = ScriptedMachine({"main": FOREVER}, {"up": lambda _: 1, "live": lambda _: 1})
    main = scripted(
        "main", startupProbe=probe("up", failureThreshold=2), livenessProbe=probe("live")
    )
    world = play(tmp_path, machine, spec(main), until_s=12)
    assert machine.asked[:2] == [("up", 0), ("up", 10)]
    assert (world.when(Did.TERM), {name for name, _ in machine.asked}) == ([10], {"up"})


def test_readiness_follows_its_thresholds_both_ways(tmp_path: Path) -> None:
    """successThreshold answers make a container ready and failureThreshold failures unready; it is
    not restarted."""
    machine = ScriptedMachine(
        {"main": FOREVER}, {"ask": lambda now: int(not 10 <= round(now) < 50)}
    )
    readiness = probe(periodSeconds=10, successThreshold=3, failureThreshold=2)
    world = play(tmp_path, machine, spec(scripted("main", readinessProbe=readiness)), until_s=100)
    assert (world.when(Did.READY), world.when(Did.UNREADY), world.when(Did.START)) == (
        [30],
        [60],
        [0],
    )


def test_an_answer_that_comes_too_late_is_a_no(tmp_path: Path) -> None:
    """A command that takes longer than timeoutSeconds counts as a failure, and the failure says
    so."""
    machine = yes_from(0)
    machine.takes_s = 5.0
    world = play(
        tmp_path,
        machine,
        spec(scripted("main", readinessProbe=probe(timeoutSeconds=2))),
        until_s=20,
    )
    first, *_ = world.journal.of("p", Did.UNHEALTHY)
    assert (round(first.at, 3), first.message) == (2, "readiness: exec: no answer within 2 s")


def test_main_containers_end_before_sidecars(tmp_path: Path) -> None:
    """Deleted, main containers get SIGTERM together, and sidecars one by one in reverse order once
    those have ended."""
    lives = {
        "a": [Life(after_term_s=1)],
        "b": [Life(after_term_s=2)],
        "m": [Life(after_term_s=3)],
        "n": FOREVER,
    }
    sides = [scripted(name, restartPolicy="Always") for name in ("a", "b")]
    world = play(
        tmp_path,
        ScriptedMachine(lives),
        spec(scripted("m"), scripted("n"), initContainers=sides),
        beside=lambda world: world.delete_at(10),
    )
    assert world.order(Did.TERM, Did.EXIT) == [
        ("m", Did.TERM, 10),
        ("n", Did.TERM, 10),
        ("n", Did.EXIT, 10),
        ("m", Did.EXIT, 13),
        ("b", Did.TERM, 13),
        ("b", Did.EXIT, 15),
        ("a", Did.TERM, 15),
        ("a", Did.EXIT, 16),
    ]


def test_a_grace_period_is_for_the_whole_pod(tmp_path: Path) -> None:
    """What does not end in it is killed; a sidecar whose turn comes after it still has the least
    window of 2 s."""
    machine = ScriptedMachine({"side": DEAF, "main": DEAF})
    side = scripted("side", restartPolicy="Always")
    pod = spec(scripted("main"), initContainers=[side], terminationGracePeriodSeconds=20)
    world = play(tmp_path, machine, pod, beside=lambda world: world.delete_at(100))
    assert world.order(Did.TERM, Did.KILL) == [
        ("main", Did.TERM, 100),
        ("main", Did.KILL, 120),
        ("side", Did.TERM, 120),
        ("side", Did.KILL, 122),
    ]
    assert world.pod.main[0].state["terminated"]["exitCode"] == KILLED


@pytest.mark.parametrize(("hook_s", "term_at"), [(10, 110), (40, 130)])
def test_a_pre_stop_hook_uses_up_the_grace_period(
    hook_s: int, term_at: int, tmp_path: Path
) -> None:
    """SIGTERM waits for the hook, but no longer than the grace period, and SIGKILL comes 30 s after
    the deletion or 2 s after."""
    main = scripted("main", lifecycle={"preStop": {"sleep": {"seconds": hook_s}}})
    world = play(
        tmp_path,
        ScriptedMachine({"main": DEAF}),
        spec(main),
        beside=lambda world: world.delete_at(100),
    )
    assert (world.when(Did.PRE_STOP), world.when(Did.TERM)) == ([term_at], [term_at])
    assert world.when(Did.KILL) == [max(130, term_at + 2)]


def test_a_deletion_may_bring_its_own_grace_period(tmp_path: Path) -> None:
    """`kubectl delete --grace-period` wins over the pod's."""
    machine = ScriptedMachine({"main": DEAF})
    world = play(
        tmp_path,
        machine,
        spec(scripted("main")),
        beside=lambda world: world.delete_at(50, grace_s=5),
    )
    assert (world.when(Did.TERM), world.when(Did.KILL)) == ([50], [55])


def test_a_liveness_probe_may_bring_its_own_grace_period(tmp_path: Path) -> None:
    """terminationGracePeriodSeconds of a probe replaces the pod's where that probe ends the
    process."""
    liveness = probe(failureThreshold=1, terminationGracePeriodSeconds=7)
    machine = ScriptedMachine({"main": DEAF}, {"ask": lambda _: 1})
    world = play(tmp_path, machine, spec(scripted("main", livenessProbe=liveness)), until_s=7.5)
    assert (world.when(Did.TERM)[0], world.when(Did.KILL)) == (0, [7])


def test_init_containers_run_one_after_another(tmp_path: Path) -> None:
    """Each starts when the one before it has ended with 0, and main containers when the last one
    has."""
    lives = {"one": [Life(5.0)], "two": [Life(5.0, code=1), Life(5.0)], "main": [Life(1.0)]}
    init = [scripted("one"), scripted("two")]
    world = play(
        tmp_path,
        ScriptedMachine(lives),
        spec(scripted("main"), initContainers=init, restartPolicy="OnFailure"),
    )
    assert world.order(Did.START) == [
        ("one", Did.START, 0),
        ("two", Did.START, 5),
        ("two", Did.START, 10),
        ("main", Did.START, 15),
    ]
    assert world.pod.phase == "Succeeded"


def test_an_init_container_that_fails_for_good_fails_the_pod(tmp_path: Path) -> None:
    """With restartPolicy Never its first failure is the pod's, and nothing after it starts."""
    lives = {"first": [Life(1.0, code=1)], "main": FOREVER}
    world = play(
        tmp_path,
        ScriptedMachine(lives),
        spec(scripted("main"), initContainers=[scripted("first")], restartPolicy="Never"),
    )
    assert (world.pod.phase, world.when(Did.START)) == ("Failed", [])


def test_a_sidecar_holds_back_what_follows_it(tmp_path: Path) -> None:
    """What comes after a sidecar starts once its startup probe has said yes; the sidecar ends with
    the main containers."""
    side = scripted(
        "side", restartPolicy="Always", startupProbe=probe(periodSeconds=2, failureThreshold=50)
    )
    machine = ScriptedMachine(
        {"side": FOREVER, "main": [Life(5.0)]}, {"ask": lambda now: int(now < 8)}
    )
    world = play(
        tmp_path, machine, spec(scripted("main"), initContainers=[side], restartPolicy="Never")
    )
    assert world.order(Did.START, Did.TERM) == [
        ("side", Did.START, 0),
        ("main", Did.START, 8),
        ("side", Did.TERM, 13),
    ]
    assert world.pod.phase == "Succeeded"


def test_a_sidecar_is_started_again_whatever_the_pods_policy(tmp_path: Path) -> None:
    """A sidecar that ends is restarted even where the pod says Never, and its exit code does not
    fail the pod."""
    side = scripted("side", restartPolicy="Always")
    machine = ScriptedMachine({"side": [Life(2.0, code=1), Life()], "main": [Life(30.0)]})
    world = play(
        tmp_path, machine, spec(scripted("main"), initContainers=[side], restartPolicy="Never")
    )
    assert (world.when(Did.START, container="side"), world.pod.phase) == ([0, 2], "Succeeded")


def test_a_deadline_ends_the_pod(tmp_path: Path) -> None:
    """activeDeadlineSeconds fails a pod that still runs: SIGTERM first, then its grace period."""
    pod = spec(scripted("main"), activeDeadlineSeconds=600, restartPolicy="Never")
    world = play(tmp_path, ScriptedMachine({"main": DEAF}), pod)
    assert (world.when(Did.TERM), world.when(Did.KILL)) == ([600], [630])
    assert (world.pod.status["phase"], world.pod.status["reason"]) == ("Failed", "DeadlineExceeded")


def test_a_pod_deleted_during_a_back_off_is_over_at_once(tmp_path: Path) -> None:
    """A container that waits for its restart is not started again once the pod is deleted."""

    async def delete(world: World) -> None:
        await world.delete_at(5)

    machine = ScriptedMachine({"main": [Life(1.0, code=1)]})
    world = play(tmp_path, machine, spec(scripted("main")), beside=delete)
    assert (world.when(Did.START), world.pod.phase, round(world.loop.time(), 3)) == (
        [0, 1],
        "Failed",
        5,
    )
