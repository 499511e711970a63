"""The jobs behind the commands: prepare, inspect, synth, train, evaluate, predict, scale, doctor."""

if __name__ != "stampede.workflows":
    raise ImportError("import stampede.workflows, not workflows")
