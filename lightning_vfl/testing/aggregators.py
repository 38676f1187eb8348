"""The laws of aggregators (``lightning_vfl.aggregators.base``), for an aggregator of your own."""

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.testing import message_laws, side_laws, value_laws
from lightning_vfl.testing.law import Law
from lightning_vfl.testing.rounds import Subject

LAWS = (
    value_laws.messages_decode_to_clear,
    value_laws.a_round_is_plain,
    value_laws.a_record_changes_its_own_row_alone,
    value_laws.columns_fit_the_value,
    value_laws.answer_and_carry_are_the_adjoint_of_plain,
    value_laws.uncounted_parties_change_nothing_and_learn_nothing,
    value_laws.rows_that_a_party_does_not_hold_do_not_count,
    value_laws.what_is_charged_has_noise,
    value_laws.the_short_way_is_the_way_through_messages,
    message_laws.messages_fit_their_legs,
    message_laws.hosting_together_is_hosting_alone,
    message_laws.carrying_together_is_carrying_alone,
    side_laws.visible_is_what_the_code_does,
    side_laws.hidden_embeddings_are_not_handed_over,
    side_laws.the_sides_share_no_mutable_object,
    side_laws.nothing_is_kept_between_rounds,
    side_laws.the_printed_form_names_the_settings,
)


def check_aggregator(
    aggregator: Aggregator,
    parties: int = 4,
    width: int = 8,
    fewest: int = 1,
    error: float = 0.0,
    partly_held: bool = True,
) -> None:
    """Check all laws of an aggregator.

    Not guaranteed: laws that compare uploads, where two uploads of the same numbers differ because of random secrets or
        noise; take these from a seed, as ``insecure_seeded_secrets`` does, to have all laws checked.

    Args:
        aggregator: an object of your class; it is copied for each round.
        parties: M, at least 2.
        width: D, the embedding width that every party is asked for.
        fewest: the fewest included parties that the aggregator has to join; rounds that its wire gives up by
            ``needed`` and ``takes_part`` are left out anyway.
        error: how far a number of the aggregate may be from ``plain``, if the aggregator has a wire; infinity if the
            wire does not send embeddings but, for example, their signs.
        partly_held: whether an aggregator in the clear has to join records that some parties do not hold.

    Raises:
        LawBroken: for the first law that is broken, with its name and the numbers.
    """
    for law in aggregator_laws(aggregator, parties, width, fewest, error, partly_held):
        law()


def aggregator_laws(
    aggregator: Aggregator,
    parties: int = 4,
    width: int = 8,
    fewest: int = 1,
    error: float = 0.0,
    partly_held: bool = True,
) -> tuple[Law, ...]:
    """The laws that ``check_aggregator`` checks, one object each, with the same arguments.

    Examples:
        >>> from lightning_vfl.aggregators import Mean
        >>> for law in aggregator_laws(Mean()):
        ...     law()
    """
    subject = Subject(aggregator, parties, width, fewest, error, partly_held)
    return tuple(Law(check, subject, type(aggregator).__name__) for check in LAWS)
