defmodule ExternalService.Simulation.Timeline do
  # What happened, over time, in a bounded number of rows. Each row begins where something happened, with the state of
  # the breaker from then on, and counts what happened until the next.
  #
  # At first a row stands for a millisecond. When there are too many, slices of time are made twice as long until few
  # enough are left; a change of state still begins a row of its own, unless the changes alone are too many.
  @moduledoc false

  @rows_max 1_000
  @rows_kept div(@rows_max, 2)

  defstruct [:rows, :state, length: 1, width: 1_000_000]

  @typep row :: {at :: integer(), atom(), non_neg_integer(), non_neg_integer(), non_neg_integer()}
  @type t :: %__MODULE__{rows: [row()], state: atom(), length: pos_integer(), width: pos_integer()}

  @doc "Returns a timeline that begins at 0."
  @spec new(atom()) :: t()
  def new(state), do: %__MODULE__{rows: [{0, state, 0, 0, 0}], state: state}

  @doc "Counts something that happened at `now`, which is not before what was counted so far."
  @spec count(t(), integer(), :attempts | :refused | :failed) :: t()
  def count(%__MODULE__{rows: [row | rows], state: state, width: width} = timeline, now, what) do
    if state == elem(row, 1) and div(now, width) == div(elem(row, 0), width),
      do: %{timeline | rows: [counted(row, what) | rows]},
      else: push(timeline, counted({now, state, 0, 0, 0}, what))
  end

  defp counted({at, state, attempts, refused, failed}, :attempts), do: {at, state, attempts + 1, refused, failed}
  defp counted({at, state, attempts, refused, failed}, :refused), do: {at, state, attempts, refused + 1, failed}
  defp counted({at, state, attempts, refused, failed}, :failed), do: {at, state, attempts, refused, failed + 1}

  @doc "Notes that the breaker is in another state from `now` on."
  @spec change(t(), integer(), atom()) :: t()
  def change(%__MODULE__{} = timeline, now, state), do: push(%{timeline | state: state}, {now, state, 0, 0, 0})

  @doc "Returns the rows, oldest first, with times in milliseconds."
  @spec rows(t()) :: [ExternalService.Simulation.row()]
  def rows(%__MODULE__{rows: rows}) do
    for {at, state, attempts, refused, failed} <- Enum.reverse(rows),
        do: %{at: div(at, 1_000_000), state: state, attempts: attempts, refused: refused, failed: failed}
  end

  defp push(%__MODULE__{rows: rows, length: length} = timeline, row) when length < @rows_max,
    do: %{timeline | rows: [row | rows], length: length + 1}

  defp push(%__MODULE__{rows: rows, width: width} = timeline, row) do
    {rows, width} = compact(Enum.reverse(rows), width, elem(row, 0))
    push(%{timeline | rows: Enum.reverse(rows), length: length(rows), width: width}, row)
  end

  # Once the slices alone are few, what keeps the rows many are changes of state: then those go.
  defp compact(rows, width, now) do
    width = 2 * width
    few_slices? = div(now, width) < div(@rows_kept, 4)
    rows = merge(rows, width, few_slices?)
    if length(rows) > @rows_kept, do: compact(rows, width, now), else: {rows, width}
  end

  defp merge([a, b | rest], width, any_state?) do
    if div(elem(a, 0), width) == div(elem(b, 0), width) and (any_state? or elem(a, 1) == elem(b, 1)),
      do: merge([add(a, b) | rest], width, any_state?),
      else: [a | merge([b | rest], width, any_state?)]
  end

  defp merge(rows, _width, _any_state?), do: rows

  defp add({at, state, attempts, refused, failed}, {_at, _state, more_attempts, more_refused, more_failed}),
    do: {at, state, attempts + more_attempts, refused + more_refused, failed + more_failed}
end
