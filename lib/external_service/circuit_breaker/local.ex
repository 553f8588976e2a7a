defmodule ExternalService.CircuitBreaker.Local do
  @moduledoc """
  The circuit breaker of one node, and the default `:backend`.

  It is an object of the library's C core: asking it while it is closed takes no lock and asks no process, and a failure
  costs the same however many are tolerated. Its options are those of `ExternalService.CircuitBreaker`.
  """

  @behaviour ExternalService.CircuitBreaker

  alias ExternalService.CircuitBreaker.Settings
  alias ExternalService.{Native, Options, Telemetry, Unit, VirtualClock}

  @impl true
  def install(service, options), do: {:ok, maker(options).(service)}

  @impl true
  def maker(options) do
    options = Keyword.merge(Options.defaults(:circuit_breaker), options)
    {config, clock} = {config(options), VirtualClock.handle(options[:clock])}
    fn _service -> Native.breaker_new(config, clock) end
  end

  # The options in the core's units, under its names.
  defp config(options) do
    Map.new(rules(options) ++ window(options) ++ reset(options) ++ half_open(Settings.half_open(options)))
  end

  defp rules(options) do
    [
      tolerate: options[:tolerate] || :infinity,
      within: Unit.ns(options[:within]),
      failure_rate: Unit.threshold_ppm(options[:failure_rate]),
      slow_call: Unit.ns(options[:slow_call]),
      slow_rate: Unit.threshold_ppm(Settings.slow_rate(options)),
      min_calls: options[:min_calls],
      consecutive: options[:consecutive] || 0,
      faults: Unit.ppm(options[:fault_injection] || 0)
    ]
  end

  # Calls are counted only where a rate is asked for.
  defp window(options) do
    if options[:failure_rate] || options[:slow_call],
      do: window_of(options[:window]),
      else: [window_time: 0, window_calls: 0]
  end

  defp window_of({:time, ms}), do: [window_time: Unit.ns(ms), window_calls: 0]
  defp window_of({:calls, n}), do: [window_time: 0, window_calls: n]

  defp reset(options) do
    backoff = options[:reset_backoff] || []

    [
      reset: Unit.ns(options[:reset]),
      reset_factor: Unit.ppm(if(backoff == [], do: 1, else: Keyword.get(backoff, :factor, 2))),
      reset_max: max(Unit.ns(backoff[:max]), Unit.ns(options[:reset])),
      reset_jitter: Unit.ppm(options[:reset_jitter]),
      ramp_up: Unit.ns(options[:ramp_up] || 0)
    ]
  end

  defp half_open(nil), do: [probes: 0, successes: 0, lease: :infinity]
  defp half_open(probing), do: Keyword.new(%{probing | lease: Unit.ns(probing.lease)})

  @impl true
  def watch(options) do
    cond do
      options[:slow_call] -> :durations
      options[:failure_rate] || options[:consecutive] -> :outcomes
      true -> :failures
    end
  end

  @impl true
  def ask(service, breaker) do
    case Native.breaker_ask(breaker) do
      :due -> ask_when_due(service, breaker)
      answer -> answer
    end
  end

  # Half-open it may have a place for a probe, and only a look can tell.
  defp ask_when_due(service, breaker) do
    case look(service, breaker) do
      %{state: :half_open, retry_after: 0} -> :ok
      %{state: :half_open} -> :blown
      _other -> ask(service, breaker)
    end
  end

  @impl true
  def admit(service, breaker) do
    case Native.breaker_admit(breaker) do
      generation when is_integer(generation) ->
        {:ok, generation}

      {:changed, permit} ->
        announce(service, breaker, :first)
        {:ok, permit}

      {:open, retry_after} ->
        announce(service, breaker, :first)
        {:open, Unit.ms(retry_after)}

      {_generation, _row, _serial} = probe ->
        {:ok, probe}
    end
  end

  @impl true
  def report(service, breaker, permit, outcome, duration),
    do: settle(service, breaker, Native.breaker_report(breaker, permit, outcome, duration))

  @impl true
  def melt(service, breaker), do: settle(service, breaker, Native.breaker_melt(breaker))

  @impl true
  def reset(service, breaker), do: settle(service, breaker, Native.breaker_reset(breaker))

  @impl true
  def open(service, breaker, options) do
    for_ns = Unit.ns(Keyword.get(options, :for, :infinity))
    settle(service, breaker, Native.breaker_open(breaker, for_ns, options[:reason]))
  end

  @impl true
  def close(service, breaker), do: settle(service, breaker, Native.breaker_close(breaker))

  @impl true
  def bypass(service, breaker), do: settle(service, breaker, Native.breaker_bypass(breaker))

  # Listeners hear of it if it was open, and whoever still holds it can not open it any more.
  @impl true
  def remove(service, breaker) do
    reset(service, breaker)
    retire(service, breaker)
  end

  # The state that a hand has set goes on in the breaker that takes this one's place: for listeners nothing changes.
  @impl true
  def inherit(_service, breaker, old), do: Native.breaker_inherit(breaker, old) == :kept

  @impl true
  def retire(_service, breaker) do
    Native.breaker_retire(breaker)
    :ok
  end

  @impl true
  def look(service, breaker) do
    view = Native.breaker_look(breaker)
    announce(service, breaker, :first)
    %{view | retry_after: Unit.ms(view.retry_after)}
  end

  defp settle(_service, _breaker, :ok), do: :ok
  defp settle(service, breaker, :changed), do: announce(service, breaker, :first)

  @impl true
  def idle?(_service, breaker), do: Native.breaker_idle(breaker)

  # Tells listeners of the changes nobody has told them of. The core lets one process at a time do so, and hands that
  # one whatever changes meanwhile.
  defp announce(service, breaker, turn) do
    case Native.breaker_change(breaker, turn) do
      nil ->
        :ok

      change ->
        Telemetry.changed(service, %{change | retry_after: Unit.ms(change.retry_after)})
        announce(service, breaker, :next)
    end
  end
end
