defmodule ExternalService.Insights.Counts do
  # What is counted of one service. The caller of the service counts, so nothing may wait, and what grows with every
  # call is spread over the schedulers. What has to be one number for all, the failures in a row for one, is written
  # only by calls that change it: a call that succeeds after another that did writes nothing that callers share.
  @moduledoc false

  @enforce_keys [:sums, :marks]
  defstruct [:sums, :marks]

  @typedoc "`sums` are those that only grow; `marks` are single numbers, and their reference tells one counting from the next."
  @type t :: %__MODULE__{sums: :counters.counters_ref(), marks: :atomics.atomics_ref()}

  @type outcome :: :succeeded | :degraded | :failed | :rejected

  # Sums.
  @succeeded 1
  @failed 2
  @rejected 3
  @degraded 4
  @attempts 5
  @time 6

  # Marks. Failures in a row are timed by the service's clock, in nanoseconds; logging and calls by the machine's, in
  # native units.
  @streak 1
  @worst_streak 2
  @failing_since 3
  @failed_at 4
  @worst_call 5
  @silent_until 6
  @turn 7

  @min -0x8000_0000_0000_0000
  @max 0x7FFF_FFFF_FFFF_FFFF

  # A service that does not fail at the moment is looked at after this many calls.
  @look_every 25

  @spec new() :: t()
  def new do
    marks = :atomics.new(@turn, [])
    :atomics.put(marks, @silent_until, @min)
    %__MODULE__{sums: :counters.new(@time, [:write_concurrency]), marks: marks}
  end

  @doc "Counts a failed attempt."
  @spec attempt(t()) :: :ok
  def attempt(%__MODULE__{sums: sums}), do: :counters.add(sums, @attempts, 1)

  @doc "Counts a call that took `duration`; `now` is called for the time on the service's clock if it failed."
  @spec call(t(), outcome(), non_neg_integer(), (() -> integer())) :: :ok
  def call(counts, :rejected, _duration, _now) do
    :counters.add(counts.sums, @rejected, 1)
    end_streak(counts.marks)
  end

  def call(counts, :failed, duration, now) do
    :counters.add(counts.sums, @failed, 1)
    took(counts, duration)
    prolong_streak(counts.marks, now.())
  end

  def call(counts, outcome, duration, _now) do
    :counters.add(counts.sums, @succeeded, 1)
    if outcome == :degraded, do: :counters.add(counts.sums, @degraded, 1)
    took(counts, duration)
    end_streak(counts.marks)
  end

  defp took(%{sums: sums, marks: marks}, duration) do
    :counters.add(sums, @time, duration)
    raise_to(marks, @worst_call, duration, :atomics.get(marks, @worst_call))
  end

  defp end_streak(marks) do
    if :atomics.get(marks, @streak) != 0, do: :atomics.put(marks, @streak, 0)
    :ok
  end

  # The beginning is written before the streak is one, so that nobody sees a streak with the beginning of the last.
  defp prolong_streak(marks, now) do
    if :atomics.get(marks, @streak) == 0, do: :atomics.put(marks, @failing_since, now)
    :atomics.put(marks, @failed_at, now)
    streak = :atomics.add_get(marks, @streak, 1)
    raise_to(marks, @worst_streak, streak, :atomics.get(marks, @worst_streak))
  end

  defp raise_to(marks, index, value, seen) when value > seen do
    case :atomics.compare_exchange(marks, index, seen, value) do
      :ok -> :ok
      other -> raise_to(marks, index, value, other)
    end
  end

  defp raise_to(_marks, _index, _value, _seen), do: :ok

  @doc "Returns whether this call is one after which to look for something to log."
  @spec look?(t(), integer()) :: boolean()
  def look?(%__MODULE__{marks: marks}, now) do
    :atomics.get(marks, @silent_until) <= now and
      (:atomics.get(marks, @streak) > 0 or rem(:atomics.add_get(marks, @turn, 1), @look_every) == 0)
  end

  @doc "Returns whether the caller is the one to log now; nobody is again before `later`."
  @spec speak?(t(), integer(), integer()) :: boolean()
  def speak?(%__MODULE__{marks: marks}, now, later) do
    silent_until = :atomics.get(marks, @silent_until)

    silent_until <= now and
      :atomics.compare_exchange(marks, @silent_until, silent_until, min(later, @max)) == :ok
  end

  @doc "Returns what has been counted. Calls that end meanwhile may be in one number and not yet in another."
  @spec read(t()) :: map()
  def read(%__MODULE__{sums: sums, marks: marks}) do
    [succeeded, failed, rejected, degraded, attempts, time] = Enum.map(@succeeded..@time, &:counters.get(sums, &1))

    %{
      calls: succeeded + failed + rejected,
      succeeded: succeeded,
      failed: failed,
      rejected: rejected,
      degraded: degraded,
      attempts: attempts,
      consecutive_failures: :atomics.get(marks, @streak),
      worst_consecutive_failures: :atomics.get(marks, @worst_streak),
      mean_call: if(succeeded + failed == 0, do: 0.0, else: ms(time / (succeeded + failed))),
      worst_call: ms(:atomics.get(marks, @worst_call)),
      failing_since: :atomics.get(marks, @failing_since),
      failed_at: :atomics.get(marks, @failed_at)
    }
  end

  # To the microsecond.
  defp ms(native), do: Float.round(native / System.convert_time_unit(1_000, :millisecond, :native) * 1_000, 3)
end
