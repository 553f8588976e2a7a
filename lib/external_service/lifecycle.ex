defmodule ExternalService.Lifecycle do
  # Starting and stopping: from options to a `Service`, and back to nothing.
  @moduledoc false

  require Logger

  alias ExternalService.CircuitBreaker.Basic
  alias ExternalService.{CircuitBreaker, Native, Options, Retry, RetryOptions, Service, Unit, VirtualClock}

  @spec start(ExternalService.service(), keyword()) :: :ok
  def start(name, given) do
    options = Options.validate!(:start, Options.merge(defaults(), given))
    retry = RetryOptions.merge(%RetryOptions{}, options[:retry], [:retry])
    breaker = breaker_options(options[:circuit_breaker])
    check_melt!(name, breaker, retry)
    warn_of_faults(name, breaker)
    replace(name, options, retry, breaker)
  end

  @spec stop(ExternalService.service()) :: :ok
  def stop(name) do
    case Service.get(name) do
      nil ->
        :ok

      %Service{breaker: breaker} ->
        Service.delete(name)
        CircuitBreaker.remove(name, breaker)
    end
  end

  defp defaults do
    defaults = Application.get_env(:external_service, :defaults, [])
    Options.check_given!(:start, defaults, [:defaults])
    defaults
  end

  # A service that is already running is replaced as a whole: a closed breaker, no history.
  defp replace(name, options, retry, breaker) do
    old = Service.get(name)
    service = build(name, options, retry, breaker)
    Service.put(service)
    if old && old.breaker && not by_name?(old, service), do: CircuitBreaker.remove(name, old.breaker)
    :ok
  end

  # A backend that knows its breakers by the service's name has put the new one in the old one's place.
  defp by_name?(%{breaker: {Basic, {backend, _old}}}, %{breaker: {Basic, {backend, _new}}}), do: true
  defp by_name?(_old, _new), do: false

  defp build(name, options, retry, breaker) do
    clock = options[:clock]
    schedule = RetryOptions.schedule(retry)
    sized = Keyword.put(breaker, :within, within(breaker, schedule))

    %Service{
      name: name,
      breaker: CircuitBreaker.install(name, sized, clock_option(clock)),
      melt: breaker[:melt],
      retry: retry,
      schedule: schedule,
      clock: VirtualClock.handle(clock),
      sleep: options[:sleep_function] || sleep(clock),
      telemetry: options[:telemetry],
      options: options
    }
  end

  defp clock_option(nil), do: []
  defp clock_option(clock), do: [clock: clock]

  # The options of a backend given as `{module, options}` override the shared ones, so they are checked as such.
  defp breaker_options(options) do
    {module, own} = CircuitBreaker.backend(options)
    {shared, own} = Keyword.split(own, Keyword.keys(Options.schema(:circuit_breaker)) -- [:backend])
    Options.check_given!(:circuit_breaker, shared, [:circuit_breaker, :backend])

    options |> Keyword.merge(shared) |> Keyword.put(:backend, {module, own})
  end

  defp within(breaker, schedule) do
    case {breaker[:within], breaker[:tolerate]} do
      {:auto, :infinity} -> :infinity
      {:auto, tolerate} -> schedule |> Native.trip_within(tolerate, breaker[:melt]) |> Unit.ms()
      {within, _tolerate} -> within
    end
  end

  defp check_melt!(name, breaker, retry) do
    Retry.check_melt!(name, breaker[:melt], retry)

    if breaker[:tolerate] == :infinity and breaker[:fault_injection] do
      raise ArgumentError,
            "the circuit breaker options of #{inspect(name)} contradict each other: `tolerate: :infinity` " <>
              "installs no breaker, so there is none for `:fault_injection` to inject faults with"
    end
  end

  defp warn_of_faults(name, breaker) do
    if share = breaker[:fault_injection] do
      Logger.warning(
        "[ExternalService] Service #{inspect(name)} refuses #{share * 100} % of its attempts on purpose " <>
          "(:fault_injection)."
      )
    end
  end

  defp sleep(nil), do: &Retry.sleep/1
  defp sleep(clock), do: &VirtualClock.wait(clock, &1)
end
