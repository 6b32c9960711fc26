"""The data set `digits` inside scikit-learn: 1797 handwritten digits, 8x8, grey values 0 to 16."""

from typing import Final

import numpy as np
import torch

from bayesprune.data.errors import DataError
from bayesprune.data.spec import RawData, RawPart
from bayesprune.data.splitting import hold_out

TEST_EXAMPLES: Final = 360
SPLIT_SEED: Final = 0  # fixed: the test part must be the same for everyone, whatever seed a run uses


def read_digits() -> RawData:
    """Return the digits, images (n, 1, 8, 8): 1437 to train on and 360 to test on.

    The set has no published split.  Ours holds out 360 images, every class in its share, always the same.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            "digits comes with scikit-learn, which is not installed; run: pip install scikit-learn"
        ) from error
    bunch = load_digits()
    images = bunch.images.astype(np.uint8)[:, None]
    labels = bunch.target.astype(np.int64)
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    train, test = hold_out(torch.from_numpy(labels), TEST_EXAMPLES, generator, stratify=True)
    return RawData(
        RawPart(images[train.numpy()], labels[train.numpy()]),
        RawPart(images[test.numpy()], labels[test.numpy()]),
        tuple(str(name) for name in bunch.target_names),
    )
