"""How long a training step of a small model takes, in microseconds: {"value": ...}.

The model is small on purpose: such a step is mostly launches and small allocations, where a library in front of the
driver would show.
"""

import json
import time

import torch

BATCH = 64
WIDTH = 256
WARM_UP_STEPS = 30
SECONDS = 2.0


def make():
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, 10),
    ).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(BATCH, WIDTH, device="cuda")
    targets = torch.zeros(BATCH, dtype=torch.long, device="cuda")
    return model, optimizer, inputs, targets


def train(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()


def main():
    parts = make()
    for _ in range(WARM_UP_STEPS):
        train(*parts)
    times = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        began = time.perf_counter()
        train(*parts)
        times.append(time.perf_counter() - began)
    times.sort()
    print(json.dumps({"value": times[len(times) // 2] * 1e6}))


if __name__ == "__main__":
    main()
