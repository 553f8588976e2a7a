defmodule Demo.Screen do
  @moduledoc """
  What the demo prints: a row for each tick, and a summary.

  Colours are used when the terminal has them. `NO_COLOR` turns them off, `FORCE_COLOR` on; the text is the same.
  """

  alias Demo.Scoreboard

  @columns [ok: :green, retried: :yellow, refused: :cyan, failed: :red]
  @marks [ok: "+", retried: "~", refused: "-", failed: "x"]
  @calls_per_mark 5
  @width 10

  @captions [
    healthy: "The server answers every request.",
    failing: "The server answers one request in five with 500. Retries hide it from the callers.",
    dead: "The server is dead: its port is closed. The breaker opens, and calls fail without trying it.",
    back: "The server is back on the same port. The breaker closes when its time is over."
  ]

  @doc "Prints what the columns are."
  def header do
    titles = for {kind, colour} <- @columns, do: [colour, pad_left("#{@marks[kind]} #{kind}", @width), :reset]
    print(["    time  phase    breaker  ", titles])
  end

  @doc "Prints what a phase is about."
  def caption(phase), do: print(["\n  ", :bright, @captions[phase], :reset])

  @doc "Prints one tick: what was counted between the totals `before` and `now`."
  def row(board, state, before, now) do
    counts = for {kind, _colour} <- @columns, do: {kind, now[kind] - before[kind]}
    seconds = :erlang.float_to_binary(Scoreboard.elapsed_ms(board) / 1_000, decimals: 2)

    print([
      [pad_left(seconds, 7), "s  ", pad_right(Scoreboard.phase(board), 9)],
      [state_colour(state), pad_right(state, 9), :reset],
      for({kind, count} <- counts, do: cell(kind, count)),
      ["  ", for({kind, count} <- counts, do: bar(kind, count))]
    ])
  end

  @doc "Prints what the whole demo showed."
  def summary(board, clients, attempts_per_call) do
    totals = Scoreboard.totals(board)
    dead = fn kind -> Scoreboard.count_of(board, :dead, kind) end
    calls = dead.(:ok) + dead.(:refused) + dead.(:failed)

    print("""

      #{clients} clients made #{totals.ok + totals.refused + totals.failed} calls: \
    #{totals.ok} good, #{totals.refused} refused by the breaker, #{totals.failed} failed.
      While the server was dead, #{dead.(:attempts)} attempts reached for it.
      Without a breaker #{calls * attempts_per_call} would have: #{calls} calls x #{attempts_per_call} attempts, \
    as none of them could succeed.
      The breaker opened #{times(totals.opened)} and closed #{times(totals.closed)}.
      #{recovery(Scoreboard.recovery_ms(board))}
    """)
  end

  defp recovery(nil), do: "No call succeeded after the server's return."
  defp recovery(ms), do: "The first good call came #{ms} ms after the server's return."

  defp times(1), do: "once"
  defp times(n), do: "#{n} times"

  defp cell(_kind, 0), do: pad_left(0, @width)
  defp cell(kind, count), do: [@columns[kind], pad_left(count, @width), :reset]

  defp bar(kind, count) do
    # Rounded up: a single failure must show.
    marks = div(count + @calls_per_mark - 1, @calls_per_mark)
    [@columns[kind], String.duplicate(@marks[kind], marks), :reset]
  end

  defp state_colour(:closed), do: :green
  defp state_colour(:open), do: :red
  defp state_colour(_other), do: :yellow

  defp pad_left(value, width), do: value |> to_string() |> String.pad_leading(width)
  defp pad_right(value, width), do: value |> to_string() |> String.pad_trailing(width)

  defp print(text), do: text |> IO.ANSI.format(colour?()) |> IO.puts()

  defp colour? do
    cond do
      System.get_env("NO_COLOR", "") != "" -> false
      System.get_env("FORCE_COLOR", "") != "" -> true
      true -> IO.ANSI.enabled?()
    end
  end
end
