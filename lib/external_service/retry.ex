defmodule ExternalService.Retry do
  # What the pipeline asks about retrying. The schedule itself is the core's.
  @moduledoc false

  require Logger

  alias ExternalService.{Attempt, Deadline, Native, RetryOptions, Service, Unit}

  # The longest wait the VM's timers take.
  @sleep_max 0xFFFF_FFFF

  # The longest time that the core's clock counts.
  @longest_ms div(0x7FFF_FFFF_FFFF_FFFF, 1_000_000)

  @typedoc """
  How far a call has come: the number of its attempt, when its time for retries began, its last delay, whether the attempt
  is its last, and why the one before failed.
  """
  @type progress :: {pos_integer(), integer() | nil, previous :: non_neg_integer(), boolean(), reason :: term()}

  @doc "Where a call begins."
  defmacro first, do: quote(do: {1, nil, 0, false, nil})

  @doc "Returns how many attempts are over."
  @spec attempts(progress()) :: non_neg_integer()
  def attempts(progress), do: elem(progress, 0) - 1

  @doc "Returns why the last of those failed; `nil` if there was none."
  @spec reason(progress()) :: term()
  def reason(progress), do: elem(progress, 4)

  @doc "Returns what the core goes by for these options; `nil` for a single attempt, which has nothing to go by."
  @spec schedule(RetryOptions.t()) :: Native.schedule() | nil
  def schedule(%{max_attempts: 1}), do: nil
  def schedule(retry), do: RetryOptions.schedule(retry)

  @doc "Returns the nanoseconds to wait, and how far the call has come then; or why it has to end."
  @spec next(Service.t(), progress(), Attempt.failure(), reason :: term()) ::
          {non_neg_integer(), progress()} | :exhausted | :late | :empty
  def next(_service, {_attempt, _started, _previous, true, _reason}, _failure, _why), do: :exhausted
  def next(%{schedule: nil}, _progress, _failure, _why), do: :exhausted

  def next(service, {attempt, started, previous, false, _reason}, failure, why) do
    %{schedule: schedule, clock: clock, until: until, retry: retry, budget: budget} = service
    started = started || started(schedule, clock)

    case delay(failure, schedule, retry, attempt, previous, elapsed(started, clock), left(until), clock) do
      delay when is_integer(delay) -> afford(budget, {delay, {attempt + 1, started, delay, false, why}})
      {:last, delay} -> afford(budget, {delay, {attempt + 1, started, delay, true, why}})
      ended -> ended
    end
  end

  # The server knows better than the schedule how long to wait.
  defp delay({:retry_after, ms, _reason}, schedule, _retry, attempt, _previous, elapsed, left, _clock),
    do: Native.backoff_after(schedule, attempt, Unit.ns(min(ms, @longest_ms)), elapsed, left)

  defp delay(_failure, schedule, %{backoff: backoff} = retry, attempt, previous, elapsed, left, clock) do
    schedule = if is_function(backoff), do: RetryOptions.at(schedule, retry, attempt), else: schedule
    Native.backoff_next(schedule, attempt, previous, elapsed, left, clock)
  end

  # The time from which the schedule's budget runs; `nil` if it has none.
  defp started({_, _, _, _, _, _, :infinity, _, _, _}, _clock), do: nil
  defp started(_schedule, clock), do: Native.clock_now(clock)

  defp elapsed(nil, _clock), do: 0
  defp elapsed(started, clock), do: Native.clock_now(clock) - started

  defp left(nil), do: :infinity
  defp left(until), do: Deadline.left_ns(until)

  defp afford(nil, step), do: step
  defp afford(budget, step), do: if(Native.budget_withdraw(budget), do: step, else: :empty)

  @doc "Makes the retry budget that a service's options describe, or keeps the one of `old`, the service as it was."
  @spec budget(Service.t(), RetryOptions.t(), Native.clock() | nil) :: Native.budget() | nil
  def budget(%{budget: kept, retry: %{budget: same}, clock: clock}, %{budget: same}, clock) when kept != nil, do: kept

  def budget(_old, retry, clock) do
    if options = RetryOptions.budget(retry),
      do: Native.budget_new({Unit.ppm(options[:ratio]), options[:min_per_second]}, clock)
  end

  @doc "Pays a successful attempt into the retry budget."
  @spec deposit(Native.budget() | nil) :: :ok
  def deposit(nil), do: :ok
  def deposit(budget), do: Native.budget_deposit(budget)

  @doc "Returns how the result of an attempt is to be taken, going by its shape."
  @spec classify(term()) :: {:ok, term()} | {:retry, term()} | {:retry_after, non_neg_integer(), term()}
  def classify(:retry), do: {:retry, :reason_unknown}
  def classify({:retry, reason}), do: {:retry, reason}
  def classify({:retry_after, ms, reason}) when is_integer(ms), do: {:retry_after, max(ms, 0), reason}
  def classify(value), do: {:ok, value}

  @doc "The same, and asks `:retry_on` about what has no shape of a failure."
  @spec classify(term(), RetryOptions.t(), term()) ::
          {:ok, term()} | {:retry, term()} | {:retry_after, non_neg_integer(), term()}
  def classify(value, %{retry_on: predicate}, service) do
    with {:ok, value} when predicate != nil <- classify(value) do
      if holds?(predicate, value, :retry_on, service), do: {:retry, value}, else: {:ok, value}
    end
  end

  @doc "Returns whether a raised exception is to be retried."
  @spec exception?(Exception.t(), RetryOptions.t(), term()) :: boolean()
  def exception?(%module{}, %{retry_exceptions: modules}, _service) when is_list(modules), do: module in modules

  def exception?(exception, %{retry_exceptions: predicate}, service),
    do: holds?(predicate, exception, :retry_exceptions, service)

  @doc "Raises if a call would melt only when it gives up, and would never give up."
  @spec check_melt!(term(), :per_attempt | :per_call, RetryOptions.t()) :: :ok
  def check_melt!(name, :per_call, %{max_attempts: :infinity, expiry: expiry}) when expiry in [nil, :infinity] do
    raise ArgumentError,
          "calls to #{inspect(name)} would never give up (`max_attempts: :infinity` without an `:expiry`), and with " <>
            "`circuit_breaker: [melt: :per_call]` only a call that gives up counts as a failure. Bound the retrying, " <>
            "or use `melt: :per_attempt`"
  end

  def check_melt!(_name, _melt, _retry), do: :ok

  @doc "Waits `ms` milliseconds."
  @spec sleep(non_neg_integer()) :: :ok
  def sleep(0), do: :ok
  def sleep(ms), do: ms |> min(@sleep_max) |> Process.sleep()

  # A predicate is the user's: when it fails it has matched nothing, and the call's own outcome stands.
  @doc "Returns whether the user's predicate, given as `option`, takes `value`."
  @spec holds?((term() -> as_boolean(term())), term(), atom(), term()) :: boolean()
  def holds?(predicate, value, option, service) do
    if predicate.(value), do: true, else: false
  catch
    kind, reason ->
      Logger.warning(
        "The #{inspect(option)} predicate for #{inspect(service)} did not return, so the call was treated as not " <>
          "retriable: " <> Exception.format(kind, reason, __STACKTRACE__)
      )

      false
  end
end
