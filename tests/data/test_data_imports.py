"""What a machine with torch and numpy alone can import."""

import subprocess
import sys

CODE = """
import sys
for name in ("sklearn", "pooch", "typer", "rich", "requests", "platformdirs", "scipy"):
    sys.modules[name] = None  # importing it now fails
import bayesprune.data, bayesprune.models, bayesprune.likelihoods
for name in ("fashion-mnist", "cifar10"):
    try:
        bayesprune.data.load(name)
    except bayesprune.data.DataError as error:
        assert "bayesprune data fetch" in str(error)
bayesprune.models.create("lenet5", (1, 28, 28))
"""


def test_data_models_and_likelihoods_need_torch_and_numpy_alone():
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
