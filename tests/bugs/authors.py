"""Bugs of what holds for an author's own subclass under Lightning."""

from tests.bugs.bug import Bug

AUTHORS = (
    Bug(
        "lightning_vfl/protocols/hooks.py",
        "        answer = toolkit_part(self, *args, **settings)\n",
        "        answer = None\n",
        "an author's hook without super() takes the place of the toolkit's part",
        "unit/protocols/test_free_hooks.py",
    ),
    Bug(
        "lightning_vfl/protocols/model.py",
        "class _OwnGradients:\n",
        '__import__("warnings").simplefilter("ignore")\n\n\nclass _OwnGradients:\n',
        "importing the package hides the warnings of the whole process",
        "unit/test_imports.py",
    ),
    Bug(
        "lightning_vfl/protocols/first_rounds.py",
        "if part not in module.used]:",
        "if False]:",
        "a part that was given and never applied is not told",
        "unit/protocols/test_first_rounds.py",
    ),
    Bug(
        "lightning_vfl/protocols/books.py",
        "if claim is None or ran >= learnt:",
        "if True:",
        "a claim is printed for rounds in which its mechanism has not run",
        "unit/protocols/test_first_rounds.py",
    ),
    Bug(
        "lightning_vfl/protocols/first_rounds.py",
        "    if nobody:\n        why = (",
        "    if False:\n        why = (",
        "a fit in which nobody learns goes on",
        "unit/protocols/test_first_rounds.py",
    ),
    Bug(
        "lightning_vfl/protocols/loading.py",
        '            module.seed = kwargs["seed"]\n',
        "            pass\n",
        "load_from_checkpoint with another seed keeps that of the checkpoint",
        "unit/protocols/test_author_refusals.py",
    ),
    Bug(
        "lightning_vfl/protocols/callback_checks.py",
        'if not outputs["loss"].isnan():',
        "if True:",
        "a search of a learning rate takes the loss of a round that was given up",
        "unit/protocols/test_author_refusals.py",
    ),
    Bug(
        "lightning_vfl/protocols/model.py",
        'if not (self._built or "bottoms" in self._modules or launched):',
        "if False:",
        "an optimiser or a logger gets no parameters before the networks are built, in silence",
        "unit/protocols/test_early_build.py",
    ),
    Bug(
        "lightning_vfl/protocols/checks.py",
        'if hasattr(loaders, "repeated") and not loaders.schedule.same_every_epoch else loaders',
        "if False else loaders",
        "overfit_batches has other batches in every epoch",
        "unit/protocols/test_author_refusals.py",
    ),
    Bug(
        "lightning_vfl/networks/flops.py",
        "return copy.deepcopy(network, hooks)",
        "return copy.deepcopy(network)",
        "the count of FLOPs calls the hooks of loggers and profilers",
        "unit/networks/test_flops.py",
    ),
    Bug(
        "lightning_vfl/protocols/first_rounds.py",
        "    if module.clock.seconds or meter",
        "    if True or meter",
        "an own step that counts no bytes and no seconds is not told",
        "unit/protocols/test_first_rounds.py",
    ),
    Bug(
        "lightning_vfl/protocols/build.py",
        "if aggregator.wire is None and not found.requires_grad:",
        "if False:",
        "an aggregator in numpy trains no party, and Lightning's words for it name no aggregator",
        "unit/protocols/test_own_parts.py",
    ),
    Bug(
        "lightning_vfl/protocols/build.py",
        "    if not torch.equal(*values):\n        what",
        "    if False:\n        what",
        "an aggregator that uses embeddings of absent parties is not told",
        "unit/protocols/test_own_parts.py",
    ),
    Bug(
        "lightning_vfl/protocols/checks.py",
        "if module.automatic_optimization and isinstance(listed, list | tuple) and len(listed) > 1:",
        "if False:",
        "two optimisers end in Lightning's words, which advise to override training_step",
        "unit/protocols/test_training.py",
    ),
)
