defmodule ExternalService.Lifecycle do
  # Starting, changing and stopping: from options to a `Service`, and back to nothing.
  @moduledoc false

  require Logger

  alias ExternalService.CircuitBreaker.Basic
  alias ExternalService.{CircuitBreaker, Concurrency, Native, Options, RateLimiter, Retry, RetryOptions}
  alias ExternalService.{Service, ServiceNotStarted, Unit, VirtualClock}

  @spec start(ExternalService.service(), keyword()) :: :ok
  def start(name, given) do
    check_wait!(name, given)
    options = Options.validate!(:start, Options.merge(defaults(), given))
    alone(name, fn -> replace(name, options, nil) end)
  end

  @spec reconfigure(ExternalService.service(), keyword()) :: :ok
  def reconfigure(name, changes) do
    check_wait!(name, changes)
    Options.check_given!(:start, changes)

    alone(name, fn ->
      service = Service.get(name) || raise ServiceNotStarted, context: %{service: name}
      replace(name, Options.validate!(:start, changed(service, changes)), service)
    end)
  end

  @spec stop(ExternalService.service()) :: :ok
  def stop(name) do
    alone(name, fn ->
      case Service.get(name) do
        nil ->
          :ok

        %Service{breaker: breaker} ->
          Service.delete(name)
          CircuitBreaker.remove(name, breaker)
      end
    end)
  end

  # One change of a service at a time. Calls do not wait for it.
  defp alone(name, change), do: :global.trans({{__MODULE__, name}, self()}, change, [node()])

  defp defaults do
    defaults = Application.get_env(:external_service, :defaults, [])
    Options.check_given!(:start, defaults, [:defaults])
    defaults
  end

  # Retry options change as they do for a call: a keyword list only what it names, a struct all.
  defp changed(service, changes) do
    {retry, changes} = Keyword.pop(changes, :retry, [])
    retry = RetryOptions.merge(service.retry, retry, [:retry])
    service.options |> Options.merge(changes) |> Keyword.put(:retry, retry)
  end

  # `kept` is the running service if only its options change; one that is started afresh keeps nothing.
  defp replace(name, options, kept) do
    retry = RetryOptions.merge(%RetryOptions{}, options[:retry], [:retry])
    breaker = breaker_options(options, RetryOptions.schedule(retry))
    Retry.check_melt!(name, breaker[:melt], retry)
    check_faults!(name, breaker)
    old = Service.get(name)
    service = build(name, options, retry, breaker, kept || %Service{})
    Service.put(service)
    if old && replaced?(old.breaker, service.breaker), do: CircuitBreaker.remove(name, old.breaker)
    :ok
  end

  # A backend that knows its breakers by the service's name has put the new one in the old one's place.
  defp replaced?({Basic, {backend, _old}}, {Basic, {backend, _new}}), do: false
  defp replaced?(old, new), do: old != nil and old != new

  defp build(name, options, retry, breaker, kept) do
    clock = options[:clock]
    sleep = options[:sleep_function] || sleep(clock)
    # In this order, since what may raise must not find anything changed.
    rate_limit = RateLimiter.reconfigure(kept.rate_limit, name, options[:rate_limit], sleep, clock)
    installed = breaker(name, breaker, kept)

    %Service{
      name: name,
      version: make_ref(),
      breaker: installed,
      breaker_options: breaker,
      rate_limit: rate_limit,
      concurrency: Concurrency.reconfigure(kept.concurrency, name, options[:concurrency], clock),
      melt: breaker[:melt],
      retry: retry,
      schedule: RetryOptions.schedule(retry),
      clock: VirtualClock.handle(clock),
      sleep: sleep,
      telemetry: options[:telemetry],
      options: options
    }
  end

  defp breaker(_name, options, %Service{breaker_options: options, breaker: breaker}), do: breaker
  defp breaker(name, options, _kept), do: CircuitBreaker.install(name, options)

  # The options of a backend given as `{module, options}` override the shared ones, so they are checked as such.
  defp breaker_options(options, schedule) do
    breaker = options[:circuit_breaker]
    {module, own} = CircuitBreaker.backend(breaker)
    {shared, own} = Keyword.split(own, Keyword.keys(Options.schema(:circuit_breaker)) -- [:backend])
    Options.check_given!(:circuit_breaker, shared, [:circuit_breaker, :backend])

    breaker = Keyword.merge(breaker, [backend: {module, own}] ++ shared ++ Keyword.take(options, [:clock]))
    Keyword.put(breaker, :within, within(breaker, schedule))
  end

  defp within(breaker, schedule) do
    case {breaker[:within], breaker[:tolerate]} do
      {:auto, :infinity} -> :infinity
      {:auto, tolerate} -> schedule |> Native.trip_within(tolerate, breaker[:melt]) |> Unit.ms()
      {within, _tolerate} -> within
    end
  end

  defp check_wait!(name, options) do
    if match?({:ok, :infinity}, fetch_in(options, [:concurrency, :wait])) do
      raise ArgumentError,
            "ExternalService.start(#{inspect(name)}, ...) sets concurrency: [wait: :infinity], which is not allowed. " <>
              "A call that waits for ever for a slot waits as long as the service hangs, and so does every call behind " <>
              "it. Give a number of milliseconds, or false to refuse a call when there is no free slot."
    end
  end

  defp fetch_in(value, []), do: {:ok, value}

  defp fetch_in(options, [key | path]) do
    with true <- Keyword.keyword?(options), {:ok, value} <- Keyword.fetch(options, key), do: fetch_in(value, path)
  end

  defp check_faults!(name, breaker) do
    share = breaker[:fault_injection]

    if share && breaker[:tolerate] == :infinity do
      raise ArgumentError,
            "the circuit breaker options of #{inspect(name)} contradict each other: `tolerate: :infinity` " <>
              "installs no breaker, so there is none for `:fault_injection` to inject faults with"
    end

    if share do
      Logger.warning(
        "[ExternalService] Service #{inspect(name)} refuses #{share * 100} % of its attempts on purpose " <>
          "(:fault_injection)."
      )
    end
  end

  defp sleep(nil), do: &Retry.sleep/1
  defp sleep(clock), do: &VirtualClock.wait(clock, &1)
end
