defmodule ExternalService.Simulation.Agenda do
  # What is going to happen and when: of those that come first, the one that was put down first. A pairing heap, since
  # most of what is put down is the next to happen, and costs nothing there.
  @moduledoc false

  @typep heap :: nil | {at :: integer(), turn :: non_neg_integer(), event :: term(), [heap()]}
  @opaque t :: {turn :: non_neg_integer(), heap()}

  @spec new() :: t()
  def new, do: {0, nil}

  @spec put(t(), integer(), term()) :: t()
  def put({turn, heap}, at, event), do: {turn + 1, meld({at, turn, event, []}, heap)}

  @doc "Returns a turn for something that is put down later, as if it were now."
  @spec turn(t()) :: {non_neg_integer(), t()}
  def turn({turn, heap}), do: {turn, {turn + 1, heap}}

  @spec put(t(), integer(), non_neg_integer(), term()) :: t()
  def put({next, heap}, at, turn, event), do: {next, meld({at, turn, event, []}, heap)}

  @spec pop(t()) :: {integer(), term(), t()} | :empty
  def pop({_turn, nil}), do: :empty
  def pop({turn, {at, _, event, rest}}), do: {at, event, {turn, pair(rest)}}

  defp meld(heap, nil), do: heap
  defp meld(nil, heap), do: heap

  defp meld({at, turn, event, rest} = a, {other_at, other_turn, other_event, other_rest} = b) do
    if at < other_at or (at == other_at and turn < other_turn),
      do: {at, turn, event, [b | rest]},
      else: {other_at, other_turn, other_event, [a | other_rest]}
  end

  defp pair([]), do: nil
  defp pair([heap]), do: heap
  defp pair([a, b | rest]), do: meld(meld(a, b), pair(rest))
end
