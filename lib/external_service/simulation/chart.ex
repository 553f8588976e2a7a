defmodule ExternalService.Simulation.Chart do
  # A simulation as text for people: its figures, and its timeline as bars.
  @moduledoc false

  alias ExternalService.Simulation

  @lines 20
  @width 40

  @doc "Returns the text."
  @spec text(Simulation.t()) :: String.t()
  def text(%Simulation{} = simulation) do
    figures = for {label, value} <- figures(simulation), do: "  #{String.pad_trailing(label, 11)}  #{value}"
    Enum.join(figures ++ ["", "  # succeeded  x failed  . refused", ""] ++ lines(simulation), "\n")
  end

  defp figures(%Simulation{} = simulation) do
    [
      {"opens after", opens(simulation.opens_after)},
      {"worst call", "#{simulation.worst_call} ms"},
      {"calls", simulation.calls},
      {"attempts", "#{simulation.attempts}, and #{simulation.refused} refused"},
      {"elapsed", "#{simulation.elapsed} ms"}
    ]
  end

  defp opens(:never), do: "never"
  defp opens(1), do: "1 call"
  defp opens(calls), do: "#{calls} calls"

  defp lines(%Simulation{elapsed: elapsed} = simulation) do
    slice = max(div(elapsed + @lines - 1, @lines), 1)
    last = max(div(elapsed - 1, slice), 0)
    rows = simulation |> Simulation.timeline() |> Enum.group_by(&min(div(&1.at, slice), last))
    {states, _state} = Enum.map_reduce(0..last, :closed, &states(Map.get(rows, &1, []), &2))
    {counts, _failed} = Enum.map_reduce(last..0//-1, 0, &counts(Map.get(rows, &1, []), &2))
    draw(Enum.map(0..last, &"#{&1 * slice}"), states, Enum.reverse(counts))
  end

  # The states that a slice of time went through, after the one in which it began.
  defp states(rows, state) do
    states = Enum.dedup([state | Enum.map(rows, & &1.state)])
    {named(states), List.last(states)}
  end

  # An attempt is drawn where it began. One that failed in a later slice, of the `failed` so far, did so here.
  defp counts(rows, failed) do
    attempts = sum(rows, :attempts)
    failed = failed + sum(rows, :failed)
    here = min(attempts, failed)
    {[attempts - here, here, sum(rows, :refused)], failed - here}
  end

  defp named([first, _, _, _ | _] = states), do: "#{first} > ... > #{List.last(states)}"
  defp named(states), do: Enum.join(states, " > ")

  defp sum(rows, key), do: rows |> Enum.map(&Map.fetch!(&1, key)) |> Enum.sum()

  defp draw(times, states, counts) do
    most = counts |> Enum.map(&Enum.sum/1) |> Enum.max() |> max(1)
    digits = times |> List.last() |> String.length()
    width = states |> Enum.map(&String.length/1) |> Enum.max()

    for {time, state, counts} <- Enum.zip([times, states, counts]) do
      line = "  #{String.pad_leading(time, digits)} ms  #{String.pad_trailing(state, width)}  #{bar(counts, most)}"
      String.trim_trailing(line)
    end
  end

  # What happened at all is seen, however little it was.
  defp bar(counts, most) do
    for {count, sign} <- Enum.zip(counts, ["#", "x", "."]),
        into: "",
        do: String.duplicate(sign, div(count * @width + most - 1, most))
  end
end
