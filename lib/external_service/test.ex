defmodule ExternalService.Test do
  @moduledoc """
  Puts services into the states that tests need, and asserts what calls did. `use ExternalService.Test` imports it.

      defmodule MyApp.MailTest do
        use ExUnit.Case, async: true
        use ExternalService.Test

        setup :record_events

        test "mail is sent again when the server is busy" do
          MyApp.Mail.deliver(:busy_once)
          assert_retried(MyApp.Mail, reason: ~r/busy/)
        end

        test "mail is put aside while the breaker is open" do
          trip_breaker(MyApp.Mail)
          assert MyApp.Mail.deliver(:any) == {:ok, :put_aside}
        end
      end

  A sleep function that records keeps retries from waiting:

      iex> import ExternalService.Test
      iex> ExternalService.start(:sms, retry: [base: 100, max_attempts: 4], sleep_function: recording_sleep())
      iex> ExternalService.call(:sms, fn -> :retry end)
      iex> assert_slept([100, 200, 400])
      [100, 200, 400]

  Where time itself matters, as in windows and open times, start the service on an `ExternalService.VirtualClock`.

  Events and sleeps are messages to the test, which the assertions read but leave in its mailbox, so one does not take
  another's away. Events of every service are recorded, so tests that run at the same time need services of their own.
  """

  alias ExternalService.{CircuitBreaker, RateLimiter, Service, Telemetry}

  # ExUnit is there where tests are, and nothing else here is called.
  @compile {:no_warn_undefined, [ExUnit.Assertions, ExUnit.Callbacks]}

  @retry [:external_service, :call, :retry]
  @blown [:external_service, :circuit_breaker, :blown]
  @sleep [:external_service, :rate_limit, :sleep]
  @limited [:external_service, :rate_limit, :rejected]
  @saturated [:external_service, :concurrency, :rejected]
  @timeout [:external_service, :timeout]
  @fallback [:external_service, :fallback]
  @events [@retry, @blown, @sleep, @limited, @saturated, @timeout, @fallback]

  # More melts than any rate can need.
  @melts 1_000_000

  @type service :: ExternalService.service()

  @typedoc "What fields of an event's metadata have to be: equal to a value, or like a regular expression in their text."
  @type expectations :: keyword()

  defmacro __using__(_options), do: quote(do: import(ExternalService.Test))

  @doc """
  Opens the service's breaker by failures, as many as its rule needs, and returns the service.

  Raises `ArgumentError` if it has no breaker that failures open.

      iex> ExternalService.start(:fax, circuit_breaker: [tolerate: 3])
      iex> :fax |> ExternalService.Test.trip_breaker() |> ExternalService.blown?()
      true
  """
  @spec trip_breaker(service()) :: service()
  def trip_breaker(service) do
    case Map.new(fetch!(service).breaker_options) do
      %{tolerate: tolerate} when is_integer(tolerate) -> melt(service, tolerate + 1)
      %{consecutive: n} when is_integer(n) -> melt(service, n)
      %{failure_rate: rate} when is_number(rate) -> melt_until_open(service, @melts)
      _other -> refuse!("#{inspect(service)} has no circuit breaker that failures open")
    end

    if ExternalService.state(service) in [:bypassed, :half_open],
      do: refuse!("the circuit breaker of #{inspect(service)} is #{ExternalService.state(service)}"),
      else: service
  end

  defp melt(service, times), do: Enum.each(1..times, fn _ -> :ok = CircuitBreaker.melt(service) end)

  defp melt_until_open(service, times) do
    if times > 0 and ExternalService.state(service) == :closed do
      melt(service, 1)
      melt_until_open(service, times - 1)
    end
  end

  @doc """
  Takes what is left of the service's rate limit, without waiting, and returns the service.

  Raises `ArgumentError` if it has none.

      iex> ExternalService.start(:post, rate_limit: [limit: 3, per: 60_000])
      iex> :post |> ExternalService.Test.exhaust_rate_limit() |> ExternalService.rate_limited?()
      true
  """
  @spec exhaust_rate_limit(service()) :: service()
  def exhaust_rate_limit(service) do
    case fetch!(service) do
      %Service{rate_limit: nil} -> refuse!("#{inspect(service)} has no rate limit")
      %Service{options: options} -> take(service, options[:rate_limit][:limit])
    end

    service
  end

  defp take(service, times) do
    if times > 0 and RateLimiter.peek(service) == :ok do
      RateLimiter.request(service)
      take(service, times - 1)
    end
  end

  @doc """
  Records the events of retries, refusals, timeouts and fallbacks, of all services, until the test is over.

  It is made for `setup :record_events`.
  """
  @spec record_events(map()) :: :ok
  def record_events(_context \\ %{}) do
    id = {__MODULE__, self()}
    Telemetry.attach_many(id, @events, &__MODULE__.__record__/4, self())
    ExUnit.Callbacks.on_exit(id, fn -> Telemetry.detach(id) end)
  end

  @doc false
  def __record__(event, _measurements, metadata, pid), do: send(pid, {__MODULE__, event, metadata})

  @doc "Asserts that an attempt of the service failed, as `expectations` say, and returns the event's metadata."
  @spec assert_retried(service(), expectations()) :: map()
  def assert_retried(service, expectations \\ []), do: recorded!("a failed attempt", [@retry], service, expectations)

  @doc "Asserts that no attempt of the service failed as `expectations` say."
  @spec refute_retried(service(), expectations()) :: :ok
  def refute_retried(service, expectations \\ []) do
    case find([@retry], service, expectations) do
      nil ->
        :ok

      metadata ->
        flunk!(
          "expected no failed attempt of #{wanted(service, expectations)}, but there was one:\n\n  #{inspect(metadata)}"
        )
    end
  end

  @doc "Asserts that the service's breaker refused an attempt, and returns the event's metadata."
  @spec assert_breaker_blown(service(), expectations()) :: map()
  def assert_breaker_blown(service, expectations \\ []),
    do: recorded!("an open circuit breaker", [@blown], service, expectations)

  @doc "Asserts that the service's rate limit made a call wait, or refused it, and returns the event's metadata."
  @spec assert_throttled(service(), expectations()) :: map()
  def assert_throttled(service, expectations \\ []),
    do: recorded!("a throttled call", [@sleep, @limited], service, expectations)

  @doc "Asserts that an attempt of the service took longer than its `:timeout`, and returns the event's metadata."
  @spec assert_timed_out(service(), expectations()) :: map()
  def assert_timed_out(service, expectations \\ []),
    do: recorded!("an attempt that timed out", [@timeout], service, expectations)

  @doc """
  Asserts that a fallback answered for a call of the service, and returns the event's metadata.

  Its `:reason` is the error: `assert_fell_back(MyApp.Mail, reason: ~r/CircuitBreakerOpen/)`.
  """
  @spec assert_fell_back(service(), expectations()) :: map()
  def assert_fell_back(service, expectations \\ []), do: recorded!("a fallback", [@fallback], service, expectations)

  @doc "Returns a `:sleep_function` that does not wait but tells `pid`, for `assert_slept/1`."
  @spec recording_sleep(pid()) :: (non_neg_integer() -> any())
  def recording_sleep(pid \\ self()), do: fn ms -> send(pid, {__MODULE__, :slept, ms}) end

  @doc "Asserts that the waits told by `recording_sleep/1` were exactly these, in milliseconds, and returns them."
  @spec assert_slept([non_neg_integer()]) :: [non_neg_integer()]
  def assert_slept(expected) do
    slept = for {__MODULE__, :slept, ms} <- messages(), do: ms

    unless slept == expected,
      do: flunk!("expected the waits #{numbers(expected)}, but they were #{numbers(slept)}. #{hint(slept)}")

    slept
  end

  # Most waits are also codes of letters.
  defp numbers(list), do: inspect(list, charlists: :as_lists)

  defp hint([]), do: "Is the service's `sleep_function` a `recording_sleep()` of this test?"
  defp hint(_slept), do: ""

  defp recorded!(what, events, service, expectations) do
    find(events, service, expectations) ||
      flunk!("expected #{what} of #{wanted(service, expectations)}, but there was none. " <> instead())
  end

  defp find(events, service, expectations) do
    fetch!(service)

    Enum.find_value(messages(), fn
      {__MODULE__, event, %{service: ^service} = metadata} -> event in events and matching(metadata, expectations)
      _other -> nil
    end)
  end

  defp matching(metadata, expectations) do
    if Enum.all?(expectations, fn {field, expected} -> like?(Map.fetch(metadata, field), expected) end), do: metadata
  end

  defp like?({:ok, value}, %Regex{} = expected), do: value == expected or text(value) =~ expected
  defp like?({:ok, value}, expected), do: value == expected
  defp like?(:error, _expected), do: false

  defp text(value) when is_binary(value), do: value
  defp text(value) when is_exception(value), do: inspect(value) <> " " <> Exception.message(value)
  defp text(value), do: inspect(value)

  defp wanted(service, []), do: inspect(service)
  defp wanted(service, expectations), do: "#{inspect(service)} with #{inspect(expectations)}"

  defp instead do
    case for {__MODULE__, [_ | _] = event, metadata} <- messages(), do: "\n  #{inspect(event)} #{inspect(metadata)}" do
      [] -> "Nothing was recorded at all. Does the test have `setup :record_events`?"
      lines -> "Recorded were:\n" <> Enum.join(lines)
    end
  end

  defp messages, do: self() |> Process.info(:messages) |> elem(1)

  defp fetch!(service) do
    Service.get(service) ||
      refuse!("the service #{inspect(service)} has not been started. Start it in the test, or in its setup")
  end

  @spec refuse!(String.t()) :: no_return()
  defp refuse!(message), do: raise(ArgumentError, message)

  defp flunk!(message), do: ExUnit.Assertions.flunk(message)
end
