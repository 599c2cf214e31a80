"""Runs stage `train`: prepares the job, runs it in this process or on several workers, and writes the *model*."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megahour.core.errors import StageError
from megahour.core.stage import Context, Inputs, ShardWriter
from megahour.core.stopping import Terminated
from megahour.learn.params import TrainParams
from megahour.monitor.alerts import Teller, check_command, command_hook
from megahour.train import result
from megahour.train.result import Result

LOG = logging.getLogger(__name__)
SPOKEN = ".spoken.parquet"  # what a voice said of held-out texts when it was scored last
SPELLED = ("ctc", "transducer")  # criteria of models whose outputs are spelled, so that error rates are known
USELESS = 0.9  # of the held-out characters or phones


def train(p: TrainParams, inputs: Inputs, out: ShardWriter, ctx: Context) -> None:
    """Run the training of `p` and write weights, configuration and curves through `out`.

    No other training may use `ctx.work`; the runner ensures that.

    Raises
    ------
    ConfigError: parameters and inputs do not fit, or the alarm's command does not exist on this machine.
    StageError: see `loop.execute` and `launch`.
    """
    if p.alarm:
        check_command(p.alarm)
    if missing := unmeasured(p):
        LOG.warning("train: %s", missing)
    ctx.work.mkdir(parents=True, exist_ok=True)
    trained = _alone(p, inputs, ctx) if p.workers == 1 else _together(p, inputs, ctx)
    out.came_in(trained.utterances + sum(trained.dropped.values()))
    out.kept(trained.utterances)
    for reason, n in trained.dropped.items():
        out.drop(reason, n)
    with out.open(".safetensors") as file:
        file.write(trained.weights)
    out.json(trained.config, ".model.json")
    out.text(trained.curves.jsonl(), ".curves.jsonl")
    if trained.curves.speech:
        with out.open(SPOKEN) as file:
            file.write(trained.curves.speech)
    rows = trained.curves.rows
    out.stats.update({name: value for name, value in rows[-1].items() if name not in ("data", "epoch")})
    if "without_path" in rows[-1]:
        out.stats["without_path"] = sum(row["without_path"] for row in rows)
    if doubt := untaught(p, rows[-1], trained.stats["outputs"]):
        LOG.warning("train: %s", doubt)
    out.stats.update(trained.stats)
    out.stat("audio_s", trained.audio_s)


def untaught(p: TrainParams, row: Mapping[str, Any], outputs: int) -> str:
    """Why the model of a finished training is of no use; "" if it may be.

    row: the curve's last. Its held-out characters or phones are nearly all wrong, or its held-out loss on senones is no
    better than that of equal posteriors for all.

    >>> untaught(TrainParams(), {"held_out_loss": 7.1, "step": 10}, 1000)[:62]
    'after 10 steps the model has learnt next to nothing: its held-'
    """
    what, loss = "", row.get("held_out_loss")
    for name, units in (("held_out_cer", "characters"), ("held_out_per", "phones")):
        if (wrong := row.get(name) or 0.0) >= USELESS:
            what = f"{wrong:.0%} of the held-out {units} are wrong"
    if p.criterion == "ce" and loss is not None and loss >= (guess := math.log(outputs)):
        what = f"its held-out loss is {loss:.2f}, and that of a guess among {outputs:,} outputs {guess:.2f}"
    if not what:
        return ""
    remedy = "raise epochs or whole_epochs, or the learning rate; or train on more data"
    return f"after {row['step']:,} steps the model has learnt next to nothing: {what}; {remedy}"


def unmeasured(p: TrainParams) -> str:
    """What the training's curves lack because the model is in parts; "" if nothing."""
    if p.parallel.shard == 1 or not p.held_out or p.criterion not in SPELLED:
        return ""
    how = "no worker has the whole model, which a search needs: use `decode` and `score` on the finished model"
    return f"the curves have held-out losses but no error rates with parallel.shard {p.parallel.shard}: {how}"


def _alone(p: TrainParams, inputs: Inputs, ctx: Context) -> Result:
    from megahour.learn import device
    from megahour.learn.data import near
    from megahour.learn.job import prepare
    from megahour.sync.group.torch_group import TorchGroup
    from megahour.train.loop import execute

    own = device.choose(p.device)
    with near(p, inputs, ctx.work) as here:
        return execute(prepare(p, here), TorchGroup(), ctx.work, ctx.progress, device=own, durable=ctx.durable)


def _together(p: TrainParams, inputs: Inputs, ctx: Context) -> Result:
    from megahour.train.workers.launch import launch

    urls = {role: artifact.url for role, artifact in inputs.items()}
    try:
        launch(p, urls, Path(ctx.work), ctx.progress, ctx.durable)
        return result.read(ctx.work)
    except (StageError, Terminated) as error:  # workers do not report their own end, since they may be restarted
        if p.alarm:
            teller = Teller(command_hook(p.alarm))
            teller.say(f"training ended: {error}")
            teller.wait()
        raise
