"""The error that ends a run whose devices have spent their budgets."""

from protofleet.protocol.user_error import BUDGET_SPENT, UserError


class BudgetSpentError(UserError, RuntimeError):
    """The error raised when the quorum cannot be reached any more because of budgets.

    The result of the run is complete up to its last round: its report and summary.json are written.
    """

    exit_code = BUDGET_SPENT
