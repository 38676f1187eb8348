"""Replay buffers against dictionaries; what hosts share, and what is refused."""

import copy
import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.decoupled.replay import ReplayBuffers
from tests.examples import examples

N, WIDTHS, HOSTS = 6, (2, 1), 3
GUESTS = len(WIDTHS)
masks = st.lists(st.booleans(), min_size=GUESTS * HOSTS, max_size=GUESTS * HOSTS)
some = st.lists(st.integers(0, N - 1), min_size=1, max_size=4, unique=True)
rounds = st.lists(st.tuples(some, some, masks, st.lists(st.booleans(), min_size=HOSTS, max_size=HOSTS)), max_size=6)
EVERYBODY = torch.ones(GUESTS, HOSTS, dtype=torch.bool), torch.ones(HOSTS, dtype=torch.bool)


def buffers(register="record", records=N, hosts=HOSTS, **more):
    made = ReplayBuffers(hosts, register, **more)
    made.prepare(records, WIDTHS, torch.device("cpu"))
    return made


def message(number, rows):
    """What each guest sends in this round: no number comes twice, none is zero."""
    return [torch.arange(1, rows * w + 1).view(rows, w) + 100.0 * (1 + number) + 0.5 * m for m, w in enumerate(WIDTHS)]


def faults(sent, up):
    return torch.tensor(sent).view(GUESTS, HOSTS), torch.tensor(up)


def read_all(replay):
    return replay.read(torch.arange(N)).expand(HOSTS, -1, -1)


def memory(replay):
    """Bytes of the tables that there are, each as large as it says."""
    sizes = {table.rows.nbytes for table in replay.tables}
    assert sizes == {replay.table_bytes}
    return len(replay.tables) * replay.table_bytes


class Dictionaries:
    """By host, record and guest, in plain Python; and the guests' registers."""

    def __init__(self):
        self.rows = [{} for _ in range(HOSTS)]
        self.known = [set() for _ in range(HOSTS)]
        self.registers = [[None] * GUESTS for _ in range(HOSTS)]

    def write(self, columns, embeddings, sent, up, literal):
        for host in range(HOSTS):
            for m in range(GUESTS):
                through = sent[m * HOSTS + host]
                if through:
                    self.registers[host][m] = embeddings[m].tolist()
                if not up[host] or not (through or literal):
                    continue
                rows = self.registers[host][m] or []
                for place, i in enumerate(columns[m]):
                    self.rows[host].pop((i, m), None)
                    if place < len(rows):
                        self.rows[host][i, m] = rows[place]
                        self.known[host].add(i)

    def read(self):
        return [
            [
                [x for m, width in enumerate(WIDTHS) for x in self.rows[host].get((i, m), [0.0] * width)]
                for i in range(N)
            ]
            for host in range(HOSTS)
        ]


def both(steps, register, own=False):
    replay, oracle = buffers(register), Dictionaries()
    for number, (ids, others, sent, up) in enumerate(steps):
        if own:  # a column for every guest, and one for the hosts that is nobody's message
            short = min(len(ids), len(others))
            columns = [ids[:short], others[:short]]
            given_ids = torch.tensor([*columns, [N - 1] * short]).T
        else:
            columns, given_ids = [ids] * GUESTS, torch.tensor(ids)
        embeddings = message(number, len(columns[0]))
        replay.write(given_ids, embeddings, *faults(sent, up))
        oracle.write(columns, embeddings, sent, up, register == "message")
    return replay, oracle


@pytest.mark.parametrize(("register", "own"), [("record", False), ("record", True), ("message", False)])
@examples(20)
@given(rounds)
def test_what_is_read_is_what_a_dictionary_holds(register, own, steps):
    replay, oracle = both(steps, register, own)
    assert read_all(replay).tolist() == oracle.read()


@pytest.mark.parametrize("own", [False, True])
@examples(20)
@given(rounds)
def test_a_record_is_known_once_anything_of_it_has_arrived(own, steps):
    replay, oracle = both(steps, "record", own)
    known, everything = replay.known(torch.arange(N))
    assert [set(row.nonzero().flatten().tolist()) for row in known.expand(HOSTS, -1)] == oracle.known
    assert everything == all(len(known) == N for known in oracle.known)


def test_rows_that_a_stale_message_does_not_reach_are_not_known():
    replay = buffers("message")
    replay.write(torch.tensor([0]), message(0, 1), *EVERYBODY)
    nobody = torch.zeros(GUESTS, HOSTS, dtype=torch.bool)
    replay.write(torch.tensor([2, 3, 4]), message(1, 3), nobody, EVERYBODY[1])
    assert read_all(replay)[0, 2].tolist() == read_all(replay)[0, 0].tolist()  # the register's only row
    assert not read_all(replay)[0, 3:].any()
    assert replay.known(torch.tensor([2, 3, 4]))[0].tolist() == [[True, False, False]]


def test_a_message_is_literally_the_guests_last_whatever_records_it_was_of():
    """By hand: guest 0 sent 101.. of records 0 and 1; its next message is lost, so 2 and 3 hold those rows."""
    replay = buffers("message")
    first, second, third = (message(number, 2) for number in range(3))
    replay.write(torch.tensor([0, 1]), first, *EVERYBODY)
    lost = EVERYBODY[0].clone()
    lost[0, 1] = False
    replay.write(torch.tensor([2, 3]), second, lost, EVERYBODY[1])
    replay.write(torch.tensor([0, 5]), third, lost, EVERYBODY[1])
    rows = read_all(replay)
    assert rows[1, 2:4, :2].tolist() == rows[1, [0, 5], :2].tolist() == first[0].tolist()
    assert rows[1, 2:4, 2:].tolist() == second[1].tolist()
    assert rows[0, 2:4, :2].tolist() == second[0].tolist()
    assert rows[1, 1, :2].tolist() == first[0][1].tolist()  # not in the later batches


ALIKE = {
    "nobody fails": EVERYBODY,
    "a guest is down": (torch.tensor([[False] * HOSTS, [True] * HOSTS]), EVERYBODY[1]),
    "every guest is down": (~EVERYBODY[0], EVERYBODY[1]),
    "every host is down": (EVERYBODY[0], ~EVERYBODY[1]),
    "every host is down and a connection fails": (torch.tensor([[True, True, False], [True] * HOSTS]), ~EVERYBODY[1]),
}
UNLIKE = {
    "a connection fails": (torch.tensor([[True, True, False], [True] * HOSTS]), EVERYBODY[1]),
    "a host is down": (EVERYBODY[0], torch.tensor([True, False, True])),
    "the first host is down": (EVERYBODY[0], torch.tensor([False, True, True])),
}


@pytest.mark.parametrize("case", ALIKE)
def test_one_table_while_all_hosts_are_told_the_same(case):
    replay = buffers()
    for number in range(2):
        replay.write(torch.tensor([1, 4]), message(number, 2), *ALIKE[case])
    assert replay.read(torch.tensor([1])).shape == (1, 1, 3)
    assert memory(replay) == N * sum(WIDTHS) * 4


@pytest.mark.parametrize("case", UNLIKE)
def test_a_table_each_afterwards(case):
    replay = buffers()
    replay.write(torch.tensor([0, 1]), message(0, 2), *EVERYBODY)
    before = read_all(replay).clone()
    replay.write(torch.tensor([1, 4]), message(1, 2), *UNLIKE[case])
    after = replay.read(torch.arange(N))
    assert after.shape == (HOSTS, N, 3)
    assert memory(replay) == HOSTS * N * sum(WIDTHS) * 4
    assert torch.equal(after[:, 0], before[:, 0])
    down = ~UNLIKE[case][1]
    assert torch.equal(after[down], before[down])
    replay.write(torch.arange(N), message(2, N), *EVERYBODY)
    assert torch.equal(*read_all(replay)[:2])
    assert len(replay.read(torch.arange(1))) == HOSTS  # they stay apart


@pytest.mark.parametrize("register", ["record", "message"])
def test_hosts_that_were_told_apart_keep_what_they_had_in_common(register):
    replay = buffers(register)
    first = message(0, 2)
    replay.write(torch.tensor([0, 1]), first, *EVERYBODY)
    replay.write(torch.tensor([2, 3]), message(1, 2), *UNLIKE["the first host is down"])
    nobody = torch.zeros(GUESTS, HOSTS, dtype=torch.bool)
    replay.write(torch.tensor([4, 5]), message(2, 2), nobody, EVERYBODY[1])
    known = replay.known(torch.arange(N))[0]
    assert known[:, :2].all()
    assert known[:, 2].tolist() == [False, True, True]
    assert torch.equal(replay.read(torch.tensor([0, 1])), torch.cat(first, 1).expand(HOSTS, -1, -1))
    # the register of a host that is down is written all the same: that is the guest's doing
    stale = torch.cat(message(1, 2), 1) if register == "message" else torch.zeros(2, 3)
    assert torch.equal(replay.read(torch.tensor([4, 5])), stale.expand(HOSTS, -1, -1))


def test_nothing_that_is_read_leads_back_to_whoever_sent_it():
    replay = buffers("message")
    sent = [h.requires_grad_() * 1 for h in message(0, 2)]
    replay.write(torch.tensor([0, 1]), sent, *EVERYBODY)
    assert not replay.read(torch.tensor([0, 1])).requires_grad
    nobody = torch.zeros(GUESTS, HOSTS, dtype=torch.bool)
    replay.write(torch.tensor([2, 3]), [h.detach() for h in sent], nobody, EVERYBODY[1])
    assert not replay.read(torch.tensor([2, 3])).requires_grad


def test_half_precision_halves_the_memory_and_rounds():
    replay = buffers(dtype="float16")
    h = [torch.full((1, w), 1 / 3) for w in WIDTHS]
    replay.write(torch.tensor([3]), h, *EVERYBODY)
    read = replay.read(torch.tensor([3]))
    assert read.dtype == torch.float32
    assert torch.equal(read, torch.full((1, 1, 3), 1 / 3).half().float())
    assert memory(replay) == N * sum(WIDTHS) * 2
    replay.write(torch.tensor([3]), h, *UNLIKE["a host is down"])
    assert memory(replay) == HOSTS * N * sum(WIDTHS) * 2


def test_the_limit_is_on_all_tables_that_there_can_be():
    one = N * sum(WIDTHS) * 4
    buffers(limit_bytes=HOSTS * one).refuse_above_limit(HOSTS)
    replay = buffers(limit_bytes=one)
    replay.refuse_above_limit(1)
    with pytest.raises(ConfigurationError, match=r"the buffers of 3 hosts, 6 records with 3 numbers .* float16"):
        replay.refuse_above_limit(HOSTS)
    with pytest.raises(ConfigurationError, match="raise limit_bytes"):
        buffers(limit_bytes=one - 1)
    buffers(limit_bytes=HOSTS * one / 2, dtype="float16").refuse_above_limit(HOSTS)


@pytest.mark.parametrize("dtype", ["float64", "half"])
def test_another_dtype_is_refused(dtype):
    with pytest.raises(ConfigurationError, match="must be 'float32' or 'float16'"):
        buffers(dtype=dtype)


def told(register="record", apart=True, dtype="float32"):
    replay = buffers(register, dtype=dtype)
    replay.write(torch.tensor([0, 1, 2]), message(0, 3), *EVERYBODY)
    case = UNLIKE["a connection fails"] if apart else ALIKE["a guest is down"]
    replay.write(torch.tensor([2, 3]), message(1, 2), *case)
    return replay


def goes_on(replay):
    """All that a buffer can show afterwards."""
    lost = torch.zeros(GUESTS, HOSTS, dtype=torch.bool)
    replay.write(torch.tensor([4, 5]), message(2, 2), lost, EVERYBODY[1])
    replay.write(torch.tensor([0]), message(3, 1), *UNLIKE["a connection fails"])
    return [read_all(replay), replay.known(torch.arange(N))[0].expand(HOSTS, -1)]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("register", ["record", "message"])
def test_the_state_goes_through_a_file_and_on(register, apart, dtype):
    replay, file = told(register, apart, dtype), io.BytesIO()
    torch.save(replay.state(), file)
    file.seek(0)
    fresh = buffers(register, dtype=dtype)
    fresh.load(torch.load(file, weights_only=True))
    assert memory(fresh) == memory(replay)
    for mine, theirs in zip(goes_on(fresh), goes_on(replay), strict=True):
        assert torch.equal(mine, theirs)


def moved(replay):
    replay.move(torch.device("cpu"))
    return replay


@pytest.mark.parametrize("move", [copy.deepcopy, moved])
def test_a_copy_goes_on_by_itself(move):
    replay, reference = told("message"), told("message")
    for mine, theirs in zip(goes_on(move(replay)), goes_on(reference), strict=True):
        assert torch.equal(mine, theirs)


def test_a_state_is_not_shared_with_who_loads_it():
    replay = told("message")
    fresh = buffers("message")
    fresh.load(replay.state())
    before = read_all(replay).clone()
    goes_on(fresh)
    assert torch.equal(read_all(replay), before)
    assert replay.known(torch.arange(N))[0][:, 4:].any().item() is False


def test_an_earlier_state_can_be_gone_back_to():
    early = copy.deepcopy(told(apart=False).state())
    late = told(apart=True)
    late.load(early)
    assert torch.equal(read_all(late), read_all(told(apart=False)))


def test_states_of_others_are_refused():
    with pytest.raises(ConfigurationError, match="buffers of 3 hosts, but this run has 2"):
        buffers(hosts=2).load(told().state())
    with pytest.raises(ConfigurationError, match="resume with the same data and width"):
        buffers(records=N + 1).load(told().state())
