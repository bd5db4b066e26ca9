"""Evaluates a trained model, and writes its measures and report.html.

    python -m trainers.evaluate --model=runs/digits_finetune --data=digits --split=test --output=runs/digits_finetune
    python -m trainers.evaluate --model=runs/x --evals="few_shot(source='cifar10', shots=(1, 5))|knn(source='cifar10')"

--model is what keras_vit.load takes: a run directory, a file of any format, a published name. Images are preprocessed as the model's
file says; --preprocess overrides this. --evals names evaluators with their options, joined by "|"; by default the task's own. A model in a
run directory is evaluated as its task says, any other as a classifier. --strategy evaluates on several devices.
"""

import json

from . import flags


def main():
    from keras_vit.distribution import strategy as find_strategy
    from keras_vit.io.atomic import check_folder
    from keras_vit.io.progress import shown

    values = flags.FLAGS
    strategy = find_strategy(values.strategy, tpu=values.tpu, model_parallel=values.model_parallel)
    with shown(strategy.chief):
        if values.output:
            check_folder(values.output)
        evaluate(values, strategy)


def evaluate(values, strategy):
    """Evaluates as the flags say, and prints and writes the measures."""
    import keras_vit
    from keras_vit.data import ExampleErrors, open_source
    from keras_vit.evaluation import Setting, parse_evaluators
    from keras_vit.io.progress import stage
    from keras_vit.runs.evaluate import task_of, write_evaluation
    from keras_vit.training.prediction.preprocessing import preprocessing_text

    task = task_of(values.model)
    with strategy.scope(), stage(f"Loading {values.model}"):
        model = keras_vit.load(values.model)
    data = values.data or (None if values.evals else "digits")
    source = None
    if data:
        with stage(f"Opening {data}"):
            source = open_source(data, values.split, values.data_dir)
        task.check_model(model, source)
    preprocess = values.preprocess or preprocessing_text(model)
    errors = ExampleErrors()
    setting = Setting(model, strategy, values.batch_size, values.data_dir, source, preprocess, task.select, errors, verbose=True)
    chosen = parse_evaluators(values.evals) if values.evals else {"": task.evaluator()}
    with stage("Preparing the evaluation"):
        prepared = {name: evaluator.prepare(setting) for name, evaluator in chosen.items()}
    for name, measure in prepared.items():
        evaluation = measure()
        if not strategy.chief:
            continue
        if name:
            print(f"{name}: {json.dumps(evaluation.measures)}")
        else:
            print(f"{data} {values.split}: {task.summary(evaluation.measures)}")
        if values.output:
            with stage("Writing the report"):
                write_evaluation(values.output, name, task, setting, evaluation, values.model, f"{data} {values.split}")


def run():
    flags.string("model", None, "A run directory, a checkpoint of any format, or a published name.", required=True)
    flags.string(
        "data",
        None,
        "digits, folder:PATH, csv:PATH, a tensorflow-datasets name: as --config.data.source. By default digits, or with --evals what they name.",
    )
    flags.string("split", "test", 'With slices: "train[90%:]".')
    flags.string("preprocess", None, "Preprocessing text; by default the model's own.")
    flags.string("evals", None, 'Evaluators with their options, joined by "|"; by default the task\'s own.')
    flags.string(
        "output",
        None,
        "A folder for report.html and evaluation.json, or with --evals NAME.json; by default the measures are only printed.",
    )
    flags.integer("batch_size", 64, "Images per batch, over all devices.", lowest=1)
    flags.define_data_dir()
    flags.define_strategy()
    flags.launch(main)


if __name__ == "__main__":
    run()
