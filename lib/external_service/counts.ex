defmodule ExternalService.Counts do
  # What a breaker has counted, as people and events are told of it.
  @moduledoc false

  alias ExternalService.CircuitBreaker.{Installed, Settings}
  alias ExternalService.{Native, Service}

  @doc "Returns the state of a service's breaker."
  @spec state(term()) :: ExternalService.state() | {:error, :not_found}
  def state(name) do
    case Installed.look(name) do
      nil -> {:error, :not_found}
      %{state: state} -> state
    end
  end

  @doc "Returns the map of `ExternalService.counts/1`."
  @spec of(term()) :: map() | {:error, :not_found}
  def of(name) do
    with %Service{} = service <- Service.get(name), %{} = view <- Installed.look(name) do
      rates? = service.breaker != nil and Settings.rates?(service.breaker_options)

      view
      |> Map.get(:counts, %{window_failures: 0, calls: 0, failures: 0, slow: 0, consecutive: 0})
      |> told(rates?, service.watch)
      |> Map.merge(%{
        state: view.state,
        ignored: Map.get(view, :ignored, 0),
        rejected: Map.get(view, :rejected, 0),
        probes: Map.get(view, :probes, 0),
        reason: Map.get(view, :reason),
        changed_at: changed_at(view, service.clock),
        retry_after: Map.get(view, :retry_after, 0)
      })
    else
      nil -> {:error, :not_found}
    end
  end

  # Calls are counted only where a rate is asked for; failures always.
  defp told(counts, true, _watch) do
    %{
      calls: counts.calls,
      successes: counts.calls - counts.failures,
      failures: counts.failures,
      slow: counts.slow,
      rate: rate(counts),
      consecutive: counts.consecutive
    }
  end

  # A streak is one only where successes are heard of, too.
  defp told(counts, false, watch) do
    %{
      calls: nil,
      successes: nil,
      failures:
        if(watch == :failures, do: counts.window_failures, else: max(counts.window_failures, counts.consecutive)),
      slow: nil,
      rate: nil,
      consecutive: if(watch == :failures, do: nil, else: counts.consecutive)
    }
  end

  defp rate(%{calls: 0}), do: 0.0
  defp rate(%{calls: calls, failures: failures}), do: failures / calls

  # In milliseconds: a virtual clock's own, else since 1970.
  defp changed_at(%{changed_at: ns}, nil),
    do: System.system_time(:millisecond) - div(Native.clock_now(nil) - ns, 1_000_000)

  defp changed_at(%{changed_at: ns}, _clock), do: Integer.floor_div(ns, 1_000_000)
  defp changed_at(_view, _clock), do: nil
end
