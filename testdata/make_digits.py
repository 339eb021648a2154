"""Makes digits.npz from the copy of the UCI handwritten digits that scikit-learn packages.

    pip install scikit-learn && python testdata/make_digits.py
"""

import io
import pathlib
import zipfile

import numpy as np
from sklearn.datasets import load_digits

SEED = 0
TRAIN = 1437


def main():
    digits = load_digits()
    order = np.random.RandomState(SEED).permutation(len(digits.target))
    x = digits.images[order].astype(np.uint8)[:, np.newaxis]
    y = digits.target[order].astype(np.int64)
    arrays = {"x": x[:TRAIN], "y": y[:TRAIN], "x_test": x[TRAIN:], "y_test": y[TRAIN:]}
    # As np.savez_compressed, but with fixed dates, so that the file is the same every time.
    path = pathlib.Path(__file__).with_name("digits.npz")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.ascontiguousarray(array))
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), buffer.getvalue(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main()
