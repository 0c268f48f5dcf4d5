"""The data map and the correlation picture: what they show of arrays and of tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lightning_ubs.inspection.pictures import plot_correlation, plot_data_map


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_tensors_and_arrays_give_the_same_points(dtype: torch.dtype) -> None:
    columns = [torch.tensor([0.5, 0.25, 0.75], dtype=dtype), torch.tensor([0.0, 0.5, 0.25], dtype=dtype)]
    times = torch.tensor([3, 9, 1])
    ours = plot_data_map(*columns, times).axes[0].collections[0]
    theirs = plot_data_map(*(column.double().numpy() for column in columns), times.numpy()).axes[0].collections[0]
    assert np.array_equal(ours.get_offsets(), theirs.get_offsets())
    assert np.array_equal(ours.get_array(), theirs.get_array())
    assert ours.get_array().tolist() == [1, 3, 9]  # the often selected are on top


def test_the_diagonal_of_a_correlation_is_left_out_and_the_callers_matrix_is_not_changed() -> None:
    matrix = torch.tensor([[1.0, 0.2], [0.2, 1.0]], requires_grad=True)
    image = plot_correlation(matrix, ["a", "b"]).axes[0].images[0]
    shown = np.ma.filled(image.get_array(), np.nan)
    assert np.isnan(np.diag(shown)).all()
    assert image.get_clim() == (0.0, pytest.approx(0.2))
    assert matrix[0, 0] == 1


def test_a_difference_gets_diverging_colors_and_many_labels_no_names() -> None:
    figure = plot_correlation(np.zeros((30, 30)), [str(i) for i in range(30)], limits=(-1, 1))
    assert figure.axes[0].images[0].get_cmap().name == "PuOr_r"
    assert figure.axes[0].get_xlabel() == "Label"


def test_a_picture_goes_where_the_caller_wants_it() -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.subplots(1, 2)
    assert plot_correlation(np.eye(3), axes=axes[1]) is figure
    assert not axes[0].images
    assert axes[1].images


def test_wrong_shapes_are_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"one value per sample, \(n,\), got .*reduce each over the labels\."):
        plot_data_map(np.zeros((3, 2)), np.zeros(3), np.zeros(3))
    with pytest.raises(ValueError, match=r"square, \(q, q\), got \(2, 3\); pass selection.correlation\."):
        plot_correlation(np.zeros((2, 3)))
