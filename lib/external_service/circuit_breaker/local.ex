defmodule ExternalService.CircuitBreaker.Local do
  @moduledoc """
  The circuit breaker of one node, and the default `:backend`.

  It is an object of the library's C core: asking it while it is closed takes no lock and asks no process, and a failure
  costs the same however many are tolerated. Its options are those of `ExternalService.CircuitBreaker`.
  """

  @behaviour ExternalService.CircuitBreaker

  alias ExternalService.{Native, Telemetry, Unit, VirtualClock}

  @impl true
  def install(_service, options) do
    config = {
      options[:tolerate],
      Unit.ns(options[:within]),
      Unit.ns(options[:reset]),
      Unit.ppm(options[:fault_injection] || 0)
    }

    {:ok, Native.breaker_new(config, VirtualClock.handle(options[:clock]))}
  end

  @impl true
  def ask(service, breaker) do
    case Native.breaker_ask(breaker) do
      :due -> with _state <- state(service, breaker), do: ask(service, breaker)
      answer -> answer
    end
  end

  @impl true
  def admit(service, breaker) do
    case Native.breaker_admit(breaker) do
      generation when is_integer(generation) ->
        {:ok, generation}

      {:changed, generation} ->
        announce(service, breaker, :first)
        {:ok, generation}

      {:open, retry_after} ->
        announce(service, breaker, :first)
        {:open, Unit.ms(retry_after)}
    end
  end

  @impl true
  def report(service, breaker, generation, outcome),
    do: settle(service, breaker, Native.breaker_report(breaker, generation, outcome))

  @impl true
  def melt(service, breaker), do: settle(service, breaker, Native.breaker_melt(breaker))

  @impl true
  def reset(service, breaker), do: settle(service, breaker, Native.breaker_reset(breaker))

  # Listeners hear of it if it was open, and calls that were let through by it can not open it any more.
  @impl true
  def remove(service, breaker), do: reset(service, breaker)

  @impl true
  def state(service, breaker) do
    {state, _failures, _retry_after, _changed_at, _generation} = Native.breaker_state(breaker)
    announce(service, breaker, :first)
    state
  end

  defp settle(_service, _breaker, :ok), do: :ok
  defp settle(service, breaker, :changed), do: announce(service, breaker, :first)

  # Tells listeners of the changes nobody has told them of. The core lets one process at a time do so, and hands that
  # one whatever changes meanwhile.
  defp announce(service, breaker, turn) do
    case Native.breaker_change(breaker, turn) do
      nil ->
        :ok

      {from, to, rule, failures, _at, retry_after} ->
        metadata = %{from: from, to: to, rule: rule, reason: nil, retry_after: Unit.ms(retry_after)}
        Telemetry.changed(service, to, %{failures: failures}, metadata)
        announce(service, breaker, :next)
    end
  end
end
