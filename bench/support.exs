defmodule Bench do
  @moduledoc """
  Measures operations beside a baseline, in one run.

  A row names a loop: a function of a compiled module that does the operation `n` times with one argument. All rows are
  measured in turn, many times over, and each shows its median, so that a busy moment of the machine hits all alike.
  Every sample runs in processes of its own, made before the clock starts.
  """

  @repeats 41
  @sample_ns 4_000_000

  defmodule Row do
    @moduledoc """
    One line of the report. `budget` is a multiple of the first row's time, `processes` how many run the loop at once,
    `operations` how many a round of the loop does.
    """
    @enforce_keys [:name, :loop, :argument]
    defstruct [:name, :loop, :argument, :budget, operations: 1, processes: 1, rounds: 0, samples: []]
  end

  @doc """
  Defines a loop: `loop name(argument), do: operation` is a function `name(n, argument)` that does the operation n times.
  """
  defmacro loop({name, _meta, [argument]}, do: operation) do
    quote do
      def unquote(name)(0, _argument), do: :ok

      def unquote(name)(n, unquote(argument)) do
        unquote(operation)
        unquote(name)(n - 1, unquote(argument))
      end
    end
  end

  @doc "Returns the rows with their samples: nanoseconds that one operation takes."
  def measure(rows), do: rows |> Enum.map(&calibrate/1) |> repeat(@repeats)

  @doc "Returns the median of a row's samples."
  def median(row), do: row.samples |> Enum.sort() |> Enum.at(div(@repeats, 2))

  @doc """
  Returns how many operations the two processes of `two` do in the time in which `one` does one.

  The least disturbed sample of each counts: any other program that runs meanwhile takes a core from two processes, and
  nothing from one.
  """
  def gain(one, two), do: 2 * Enum.min(one.samples) / Enum.min(two.samples)

  defp repeat(rows, 0), do: rows
  defp repeat(rows, times), do: rows |> Enum.map(&sample/1) |> repeat(times - 1)

  defp sample(row), do: %{row | samples: [run_for(row) / (row.rounds * row.operations) | row.samples]}

  # Doubles the rounds until they take long enough to be measured; this also warms the loop up.
  defp calibrate(row, rounds \\ 16) do
    row = %{row | rounds: rounds}
    if run_for(row) < @sample_ns, do: calibrate(row, rounds * 2), else: row
  end

  # Nanoseconds that the rounds take, from the first start to the last end.
  defp run_for(row) do
    parent = self()
    runners = for number <- 1..row.processes, do: :erlang.spawn_opt(fn -> run(row, parent) end, placed(number, row))
    for runner <- runners, do: send(runner, :go)
    {starts, ends} = Enum.unzip(for runner <- runners, do: receive(do: ({^runner, times} -> times)))
    System.convert_time_unit(Enum.max(ends) - Enum.min(starts), :native, :nanosecond)
  end

  # Left alone, processes that one process starts share its scheduler for longer than a sample takes.
  defp placed(_number, %Row{processes: 1}), do: [:link]
  defp placed(number, _row), do: [:link, scheduler: number]

  defp run(%Row{loop: loop, rounds: rounds, argument: argument}, parent) do
    receive do: (:go -> :ok)
    started = System.monotonic_time()
    loop.(rounds, argument)
    send(parent, {self(), {started, System.monotonic_time()}})
  end

  @doc "Prints each row's time, as nanoseconds and as a multiple of the first row's, beside its budget."
  def report([baseline | _] = rows) do
    line("operation", "ns", "ratio", "budget", "")
    for row <- rows, do: report_row(row, median(row), median(row) / median(baseline))
  end

  defp report_row(%Row{budget: nil} = row, ns, ratio), do: line(row.name, decimals(ns, 1), decimals(ratio, 3), "", "")

  defp report_row(row, ns, ratio) do
    verdict = if ratio > row.budget, do: "OVER BUDGET", else: "ok"
    line(row.name, decimals(ns, 1), decimals(ratio, 3), decimals(row.budget, 2), verdict)
  end

  @doc "Prints one line of the report."
  def line(name, ns, ratio, budget, verdict) do
    columns = [String.pad_trailing(name, 58) | for(text <- [ns, ratio, budget], do: String.pad_leading(text, 9))]
    [columns, "  ", verdict] |> IO.iodata_to_binary() |> String.trim_trailing() |> IO.puts()
  end

  @doc "Formats a number."
  def decimals(number, count), do: :erlang.float_to_binary(number / 1, decimals: count)
end
