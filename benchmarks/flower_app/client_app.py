"""A device whose training takes no time: it changes every weight a little and sends the model back."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

EXAMPLES = 31


def train(message: Message, context: Context) -> Message:
    # Each device makes different random numbers, because Flower sends equal arrays only once.
    rng = np.random.default_rng(context.node_id)
    model = [
        w + np.float32(1e-3) * rng.standard_normal(w.shape, dtype=np.float32)
        for w in message.content["arrays"].to_numpy_ndarrays()
    ]
    answer = {"arrays": ArrayRecord(model), "metrics": MetricRecord({"num-examples": EXAMPLES})}
    return Message(content=RecordDict(answer), reply_to=message)


app = ClientApp()
app.train()(
    train
)  # The function is not decorated, because a decorator has no types if Flower is not installed.
