from pathlib import Path

from transformer_cli.config import Config
from transformer_cli.training.saving import Progress
from transformer_cli.training.session import TrainingResult, describe_result


def describe(progress: Progress) -> list[str]:
    data = {"source_language": "de", "target_language": "en"}
    pair = {"source": "a", "target": "b"}
    config = Config.model_validate({"data": data | {"train": pair, "valid": pair}, "training": {"max_steps": 1000}})
    result = TrainingResult(Path("run"), "max_steps = 1,000 reached", 1000, 500, 30.126, progress.seconds)
    return list(describe_result(result, config, progress))


def test_the_end_is_told_with_how_long_it_took() -> None:
    assert describe(Progress(seconds=120.0, validation_seconds=15.0)) == [
        "finished     max_steps = 1,000 reached; 1,000 steps in 2.0 minutes, 12.5% of them validation",
        "best         step 500, validation bleu 30.13",
        'model        run: tfm translate run "…"',
    ]


def test_updates_that_were_not_as_usual_are_counted() -> None:
    lines = describe(Progress(skipped=1200, halvings=3))
    assert "updates      1,200 skipped (not finite), 3 halved (out of memory)" in lines
    assert "updates      3 halved (out of memory)" in describe(Progress(halvings=3))
