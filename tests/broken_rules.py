"""Break the rendezvous' rules one at a time and see the named test fail.

    python -m tests.broken_rules            # all
    python -m tests.broken_rules "12:"      # those whose rule has these words

A test that passes when its subject is broken proves nothing. Each entry changes a few
characters of a copy of the repository and runs one test there, which must fail; unbroken, all
of them must pass. Takes about two minutes, so it is not part of `make test`.
"""

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
R = "trainer/rendezvous"
T = "tests/trainer/rendezvous"


@dataclass(frozen=True)
class Broken:
    rule: str
    file: str
    right: str
    wrong: str
    test: str


BROKEN = (
    Broken(
        "1: the claim is part of the payload's key",
        "trainer/layout.py", "/rank_{rank:04d}.c{claim}.bin", "/rank_{rank:04d}.bin",
        f"{T}/test_allreduce.py::test_a_restarted_process_never_writes_over_what_its_earlier_life_put",
    ),
    Broken(
        "1: every process takes a claim of its own",
        f"{R}/run_log.py", "while self.store.create(self.keys.claim(rank, claim), body) != body:", "while False:",
        f"{T}/test_run_log.py::test_each_process_gets_a_claim_of_its_own",
    ),
    Broken(
        "2: nothing in the log is overwritten",
        f"{R}/object_store.py", 'mode="create"', 'mode="overwrite"',
        f"{T}/test_store_conformance.py::test_create_never_overwrites[memory]",
    ),
    Broken(
        "2: S3 is asked for create-only puts: If-None-Match",
        f"{R}/object_store.py", 'mode="create", ', "",
        f"{T}/test_store_conformance.py::test_of_16_writers_of_one_key_one_wins_and_15_use_its_bytes[fault_s3]",
    ),
    Broken(
        "3: after 412 the bytes that stand count, not the writer's own",
        f"{R}/object_store.py", "return standing", "return data",
        f"{T}/test_store_faults.py::test_after_412_the_bytes_that_stand_are_used_not_ours",
    ),
    Broken(
        "3: 409 means that nothing was stored",
        f"{R}/object_store.py", "if standing is not None:", "if isinstance(error, AlreadyExistsError):\n                    return data\n                if standing is not None:",
        f"{T}/test_store_faults.py::test_a_put_that_did_not_land_is_put_again",
    ),
    Broken(
        "3: denied is not tried again",
        f"{R}/object_store.py", "except (PermissionDeniedError, UnauthenticatedError, PermissionError, FileNotFoundError)",
        "except FileNotFoundError",
        f"{T}/test_store_faults.py::test_a_denied_create_fails_at_once",
    ),
    Broken(
        "3: writers that collided wait for different times",
        f"{R}/object_store.py", "self._sleep(self._jitter(longest_s / 2, longest_s))", "self._sleep(longest_s)",
        f"{T}/test_store_faults.py::test_writers_that_collided_wait_for_different_times",
    ),
    Broken(
        "3: a completion whose answer was lost counts",
        f"{R}/object_store.py", 'if "NoSuchUpload" not in str(error):', "if True:",
        f"{T}/test_store_faults.py::test_an_upload_in_parts_outlives_a_fault",
    ),
    Broken(
        "3: a listing that breaks off is asked for again",
        f"{R}/object_store.py", "broken_off = _BROKEN_OFF.search(str(error))", "broken_off = False",
        f"{T}/test_store_faults.py::test_a_fault_that_passes_is_not_seen",
    ),
    Broken(
        "3: an object has no more parts than S3 takes",
        f"{R}/object_store.py", "return max(PART_BYTES, -(-size_bytes // MOST_PARTS))", "return PART_BYTES",
        f"{T}/test_object_store.py::test_parts_are_such_as_s3_takes",
    ),
    Broken(
        "4: the first roster stands",
        f"{R}/run_log.py", "return self._roster(ours.round, standing)", "return ours",
        f"{T}/test_run_log.py::test_the_first_roster_stands",
    ),
    Broken(
        "5: sums run in rank order, not in order of arrival",
        f"{R}/averaging.py", "for member in self.members", "for member in self.members[::-1]",
        f"{T}/test_same_bits.py::test_a_sum_in_another_order_would_have_other_bits",
    ),
    Broken(
        "5: members stand in the roster in rank order, not in order of arrival",
        f"{R}/allreduce.py", "for rank in sorted(found))", "for rank in found)",
        f"{T}/test_same_bits.py::test_a_sum_in_another_order_would_have_other_bits",
    ),
    Broken(
        "5: the outer step multiplies, then adds",
        "trainer/outer_optimizer.py", "parameter.sub_(buffer.mul(momentum).add_(parameter.grad).mul_(lr))",
        "parameter.add_(buffer.mul(momentum).add_(parameter.grad), alpha=-lr)",
        "tests/trainer/test_outer_optimizer.py::test_no_operation_takes_alpha_or_value",
    ),
    Broken(
        "5: the initial weights are the first writer's",
        f"{R}/initial.py", "tensor.copy_(state.weights[name])", "pass",
        f"{T}/test_manager.py::test_initial_weights_are_those_of_the_first_who_comes",
    ),
    Broken(
        "6: no mean before the roster stands",
        f"{R}/run_log.py", "standing = self.store.create(self.keys.roster(ours.round), ours.encode())",
        "standing = ours.encode()",
        f"{T}/test_allreduce.py::test_nothing_is_averaged_before_the_roster_stands",
    ),
    Broken(
        "7: a failed round never commits",
        f"{R}/manager.py", "event, self._work = self._work.event, None",
        "event, self._work = self._exchange._event(self._round, 0), None",
        f"{T}/test_manager.py::test_a_failed_round_raises_in_wait_and_never_commits",
    ),
    Broken(
        "8: no contribution below the head",
        f"{R}/allreduce.py", "if roster is not None:", "if False:",
        f"{T}/test_allreduce.py::test_a_process_below_the_head_takes_what_was_agreed_and_contributes_nothing",
    ),
    Broken(
        "8: the step advances on commit",
        f"{R}/manager.py", '        if self._reporter.failure is not None:\n            raise self._reporter.failure\n',
        "        self._round += 1\n",
        "tests/trainer/test_torchft_traps.py::test_fragments_take_turns_from_the_first_on",
    ),
    Broken(
        "8: momentum is replayed with the weights",
        "trainer/diloco.py", "        outer[index].step()\n", "        with torch.no_grad():\n            [p.sub_(p.grad * outer_lr) for _, p in parts[index].named_parameters()]\n",
        "tests/trainer/test_diloco.py::test_a_killed_replica_comes_back_at_the_head_and_all_end_equal",
    ),
    Broken(
        "9: a difference of the base is noticed",
        f"{R}/allreduce.py", "if ours != agreed:", "if False:",
        f"{T}/test_allreduce.py::test_the_odd_one_leaves_and_the_majority_goes_on",
    ),
    Broken(
        "9: no majority, no mean",
        f"{R}/allreduce.py", "if 2 * count > len(by_rank):", "if True:",
        f"{T}/test_allreduce.py::test_without_a_majority_the_run_is_given_up_naming_the_ranks",
    ),
    Broken(
        "10: every chunk's checksum is checked",
        f"{R}/payload.py", "if found == self.chunk_crc64nvme[index]:", "if True:",
        f"{T}/test_payload.py::test_a_bit_flipped_at_rest_names_rank_round_and_key",
    ),
    Broken(
        "10: a checksum that is skipped lets damage into a mean",
        f"{R}/payload.py", "if found == self.chunk_crc64nvme[index]:", "if True:",
        f"{T}/test_same_bits.py::test_every_rank_has_the_bits_of_the_mean_computed_plainly",
    ),
    Broken(
        "10: a document's checksum is checked",
        f"{R}/documents.py", "if found is None or crc64nvme(memoryview(found[1])).encode() != found[2]:", "if found is None:",
        f"{T}/test_run_log.py::test_no_flipped_bit_and_no_cut_of_a_document_goes_unnoticed",
    ),
    Broken(
        "10: a damaged document is fetched again",
        f"{R}/run_log.py", "if attempt == FETCH_ATTEMPTS:", "if True:",
        f"{T}/test_run_log.py::test_a_document_damaged_in_flight_is_fetched_again",
    ),
    Broken(
        "10: an object that seems to end too early is damaged",
        f"{R}/object_store.py", "if _SEEMS_SHORTER.search(str(error)):", "if False:",
        f"{T}/test_payload.py::test_damage_in_flight_heals_by_fetching_again",
    ),
    Broken(
        "10: what is of another layout is foreign",
        f"{R}/allreduce.py", "            self._check(member, base, geometry)\n", "            pass\n",
        f"{T}/test_allreduce.py::test_what_an_earlier_life_gave_of_another_layout_is_foreign",
    ),
    Broken(
        "11: a peer that stands still is lost at the bound",
        f"{R}/waiting.py", "if life.remaining_s(rank) <= 0", "if life.remaining_s(rank) <= -10",
        f"{T}/test_waiting.py::test_a_peer_that_never_comes_is_named_with_the_round_at_the_bound",
    ),
    Broken(
        "11: the outermost bound holds whatever peers report",
        f"{R}/waiting.py", "if left_s <= 0:", "if False:",
        f"{T}/test_waiting.py::test_life_does_not_prolong_a_wait_past_the_outermost_bound",
    ),
    Broken(
        "11: an abort ends every wait",
        f"{R}/waiting.py", "if reason is not None:", "if False:",
        f"{T}/test_waiting.py::test_an_abort_ends_a_wait_within_a_poll",
    ),
    Broken(
        "12: slices are cut at whole blocks, so that the bits are those of the whole tensor",
        f"{R}/geometry.py", "-(-slice_elements // (chunks_per_slice * BLOCK)) * BLOCK", "-(-slice_elements // chunks_per_slice)",
        f"{T}/test_same_bits.py::test_every_rank_has_the_bits_of_the_mean_computed_plainly",
    ),
    Broken(
        "12: a slice of another roster is no slice of this one",
        f"{R}/run_log.py", "found.check_is(address, **expected, roster_sha256=roster.digest)", "found.check_is(address, **expected)",
        f"{T}/test_sharded.py::test_a_slice_of_another_roster_or_format_is_foreign",
    ),
    Broken(
        "13: starting an exchange does not wait for it",
        f"{R}/allreduce.py", 'name=f"exchange-{round_index}", daemon=True).start()', 'daemon=True).run()',
        f"{T}/test_allreduce.py::test_start_returns_at_once_and_works_in_place",
    ),
    Broken(
        "14: many missing peers are looked for by one list",
        f"{R}/waiting.py", "if len(missing) > LIST_ABOVE:", "if False:",
        f"{T}/test_waiting.py::test_many_missing_peers_are_looked_for_by_one_list",
    ),
)  # fmt: skip


def main(words: str = "") -> int:
    chosen = [broken for broken in BROKEN if words in broken.rule]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        for part in ("trainer", "runs", "local_aws", "tests"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        if not _passes(copy, *{broken.test for broken in chosen}):
            print("unbroken, the tests fail: mend them first")
            return 1
        for broken in chosen:
            path = copy / broken.file
            text = path.read_text()
            if text.count(broken.right) == 0:
                print(f"STALE   rule {broken.rule}: {broken.file} no longer has {broken.right!r}")
                missed += 1
                continue
            path.write_text(text.replace(broken.right, broken.wrong))
            passed = _passes(copy, broken.test)
            path.write_text(text)
            missed += passed
            print(
                f"{'MISSED' if passed else 'caught'}  rule {broken.rule}: {broken.test.split('::')[1]}",
                flush=True,
            )
    print(f"{len(chosen) - missed} passed, {missed} failed")
    return 1 if missed else 0


def _passes(root: Path, *tests: str) -> bool:
    argv = [sys.executable, "-m", "pytest", "-x", *tests]
    return subprocess.run(argv, cwd=root, capture_output=True, check=False, timeout=300).returncode == 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
