"""Bugs of protocols, of simulated faults and of the treatment of missing parties."""

from tests.bugs.bug import Bug

TRAININGS = (
    # protocols
    Bug(
        "lightning_vfl/protocols/module.py",
        "        if idle := everyone.difference(step.learners):\n",
        "        if False:\n",
        "an absent party's optimiser takes a step with the gradients of zeros",
        "unit/protocols/test_faulty_rounds.py",
    ),
    Bug(
        "lightning_vfl/protocols/first_rounds.py",
        "if module.faults.models and module.meets_faults and not module.faults.asked:",
        "if False:",
        "a protocol that never asks for the faults trains without them in silence",
        "unit/protocols/test_first_rounds.py",
    ),
    Bug(
        "lightning_vfl/protocols/first_rounds.py",
        "if id(p) in self._excused or self._moved(p)}",
        "if self._moved(p)}",
        "a fit at a learning rate of zero ends with the error that nobody learns",
        "unit/protocols/test_first_rounds.py",
    ),
    Bug(
        "lightning_vfl/protocols/first_rounds.py",
        "self._learners.add(party)",
        "pass",
        "a party whose weights never change is not named",
        "unit/protocols/test_first_rounds.py",
    ),
    Bug(
        "lightning_vfl/rounds/plan.py",
        "learners = included & backward.receives & backward.links[:, 0]",
        "learners = included & backward.receives",
        "a party learns from an answer that its connection has lost",
        "unit/rounds/test_plan.py",
    ),
    Bug(
        "lightning_vfl/protocols/message_rounds.py",
        'seed_torch(self.device, seed, "networks", stage.value, number, self.global_rank)',
        'seed_torch(self.device, seed, "networks", stage.value, number)',
        "dropout inside the networks is the same in every process",
        "unit/protocols/test_split.py",
    ),
    Bug(
        "lightning_vfl/protocols/cascade/protocol.py",
        "scale = message.amplification * self._weights[party]",
        "scale = message.amplification",
        "the loss of an active party is not weighted by its share of the labels",
        "unit/protocols/cascade/test_cascade.py",
    ),
    Bug(
        "lightning_vfl/protocols/cascade/protocol.py",
        "self.memory.replicas.refresh(party, returned and self.owner is None)",
        "self.memory.replicas.refresh(party, self.owner is None)",
        "an active party whose answer was lost begins with the new top all the same",
        "unit/protocols/cascade/test_cascade_faults.py",
    ),
    Bug(
        "lightning_vfl/protocols/cascade/protocol.py",
        "    sent_back: dict[int, bool] = field(default_factory=dict)\n",
        "    sent_back = dict[int, bool]()\n",
        "a resumed run has forgotten to which active parties the top was sent back",
        "unit/protocols/cascade/test_cascade_resume.py",
    ),
    Bug(
        "lightning_vfl/protocols/decoupled/learners.py",
        "return None if known is None else known.to(x.dtype)",
        "return None if known is None else torch.ones_like(known, dtype=x.dtype)",
        "hosts learn from records of which they have been told nothing",
        "unit/protocols/decoupled/test_decoupled.py unit/protocols/decoupled/test_decoupled_faults.py",
    ),
    Bug(
        "lightning_vfl/protocols/decoupled/replay.py",
        "known[own[:rows]] = True",
        "known[own] = True",
        "records behind the end of a stale register count as known",
        "unit/protocols/decoupled/test_replay.py",
    ),
    Bug(
        "lightning_vfl/protocols/asynchronous.py",
        "back = self.faults.at(2 * event.request + 1, self.roster)",
        "back = self.faults.at(2 * event.request, self.roster)",
        "the way back has the faults of the way there",
        "unit/protocols/test_asynchronous.py",
    ),
    # simulation
    Bug(
        "lightning_vfl/simulation/crashes.py",
        "odd = (dies & revives & later).sum(0) % 2 == 1",
        "odd = (dies & revives).sum(0) % 2 == 1",
        "exchanges of states before the last settling draw are counted too",
        "unit/simulation/test_crashes.py",
    ),
    Bug(
        "lightning_vfl/simulation/party_dropout.py",
        "floor(self.proportion * len(passive) + 0.5 + 1e-9)",
        "round(self.proportion * len(passive))",
        "halves of a party are rounded to the even number",
        "unit/simulation/test_party_dropout.py",
    ),
    Bug(
        "lightning_vfl/schedules/arrivals.py",
        "self.faults.hosts_at(2 * number + 1, self.roster)[0]",
        "self.faults.hosts_at(2 * request + 1, self.roster)[0]",
        "the server's crashes are looked up by the party's events, not by the server's",
        "unit/schedules/test_arrivals.py",
    ),
    # waiting and missing
    Bug(
        "lightning_vfl/waiting.py",
        "n = min(self.n, int((~arrivals.isnan()).sum()))",
        "n = min(self.n, len(arrivals))",
        "the server waits for parties that it has not called",
        "unit/test_waiting.py",
    ),
    Bug(
        "lightning_vfl/protocols/cascade/memory.py",
        "                self.latest.write(message.ids, message.party, message.h)\n",
        "                pass\n",
        "an embedding that comes late is not remembered",
        "unit/protocols/cascade/test_cascade_faults.py",
    ),
    # another device
    Bug(
        "lightning_vfl/protocols/model.py",
        'with own, nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu"):',
        "with own:",
        "masks of parties and initial weights are made on the trainer's device",
        "integration/test_another_device.py",
    ),
    Bug(
        "lightning_vfl/whole_files.py",
        'part = path.with_name(f".{path.name}.part")',
        "part = path",
        "a process that is killed leaves half a file in place of the old one",
        "unit/test_whole_files.py",
    ),
    # what ends a training
    Bug(
        "lightning_vfl/protocols/build.py",
        "first = owner.setdefault(id(parameter), who)",
        "first = owner.setdefault(id(network), who)",
        "one trained layer may be in the bottoms of several parties",
        "unit/protocols/test_parameters.py",
    ),
    Bug(
        "lightning_vfl/protocols/scores.py",
        "refuse_nan_output(output[answered], batch.record_ids[answered], module.trainer)",
        "refuse_nan_output(output[:0], batch.record_ids[:0], module.trainer)",
        "predictions decide for a class where the model's output is NaN",
        "unit/protocols/test_finite.py",
    ),
)
