defmodule ExternalService.Retry do
  # What the pipeline asks about retrying. The schedule itself is the core's.
  @moduledoc false

  require Logger

  alias ExternalService.{Native, RetryOptions}

  # The longest wait the VM's timers take.
  @sleep_max 0xFFFF_FFFF

  @doc "Returns the time from which the schedule's budget runs; `nil` if it has none."
  @spec started(Native.schedule(), Native.clock() | nil) :: integer() | nil
  def started({_, _, _, _, _, _, :infinity, _, _, _}, _clock), do: nil
  def started(_schedule, clock), do: Native.clock_now(clock)

  @doc "Returns the nanoseconds before retry number `retry`, or `:exhausted`."
  @spec next(Native.schedule(), pos_integer(), integer() | nil, Native.clock() | nil) ::
          integer() | {:last, integer()} | :exhausted
  def next(schedule, retry, nil, clock), do: Native.backoff_next(schedule, retry, 0, 0, :infinity, clock)

  def next(schedule, retry, started, clock),
    do: Native.backoff_next(schedule, retry, 0, Native.clock_now(clock) - started, :infinity, clock)

  @doc "Returns how the result of an attempt is to be taken."
  @spec classify(term(), RetryOptions.t(), term()) :: {:ok, term()} | {:retry, term()}
  def classify(:retry, _retry, _service), do: {:retry, :reason_unknown}
  def classify({:retry, reason}, _retry, _service), do: {:retry, reason}
  def classify(value, %{retry_on: nil}, _service), do: {:ok, value}

  def classify(value, %{retry_on: predicate}, service),
    do: if(holds?(predicate, value, :retry_on, service), do: {:retry, value}, else: {:ok, value})

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
  defp holds?(predicate, value, option, service) do
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
