"""The error that ends a run whose devices have spent their budgets."""


class BudgetSpentError(RuntimeError):
    """The error raised when the quorum cannot be reached any more because of budgets.

    The result of the run is complete up to its last round: its report and summary.json are written.
    """
