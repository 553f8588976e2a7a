defmodule Replicas.Tally do
  @moduledoc """
  Counts: the calls and the failed attempts from the library's telemetry, and the requests of each server from itself.

  Changes of the servers' breakers are sent to the process that started it, as `{:changed, name, state, what}`.
  """

  alias ExternalService.Telemetry
  alias Replicas.Search

  @kinds [:answered, :failed, :missed, :microseconds]
  @events [
    [:external_service, :call, :stop],
    [:external_service, :call, :retry],
    [:external_service, :circuit_breaker, :opened],
    [:external_service, :circuit_breaker, :half_opened],
    [:external_service, :circuit_breaker, :closed]
  ]

  defstruct [:counters, :names, :pid]

  @doc "Makes one for servers of these names."
  def start(names) do
    tally = %__MODULE__{counters: :counters.new(length(@kinds ++ names), []), names: names, pid: self()}
    :ok = Telemetry.attach_many(__MODULE__, @events, &__MODULE__.handle_event/4, tally)
    tally
  end

  @doc "Stops counting calls."
  def stop, do: Telemetry.detach(__MODULE__)

  @doc "Counts one more, or so many more, of a kind or of a server's requests."
  def add(tally, what, count \\ 1), do: :counters.add(tally.counters, place(tally, what), count)

  @doc "Returns what was counted so far, and when: to be subtracted from a later one by `since/2`."
  def now(tally) do
    counts = for what <- @kinds ++ tally.names, into: %{}, do: {what, :counters.get(tally.counters, place(tally, what))}
    Map.put(counts, :ms, System.monotonic_time(:millisecond))
  end

  @doc "Returns what was counted between two looks."
  def since(later, earlier), do: Map.new(later, fn {what, count} -> {what, count - earlier[what]} end)

  @doc "Returns a server's share of the requests."
  def share(counts, name, names), do: counts[name] / max(1, Enum.sum(for name <- names, do: counts[name]))

  @doc "Returns the calls of a second that were answered."
  def per_second(counts), do: counts.answered * 1_000 / max(1, counts.ms)

  @doc false
  def handle_event([_library, :call, :stop], %{duration: duration}, %{service: Search, result: result}, tally) do
    add(tally, if(match?({:ok, _body}, result), do: :answered, else: :failed))
    add(tally, :microseconds, System.convert_time_unit(duration, :native, :microsecond))
  end

  def handle_event([_library, :call, :retry], _measurements, %{service: Search}, tally), do: add(tally, :missed)

  # The breaker of an endpoint has a name of two parts.
  def handle_event([_library, :circuit_breaker, _change], counts, %{service: {Search, {name, _port}}} = what, tally),
    do: send(tally.pid, {:changed, name, what.to, Map.merge(counts, what)})

  def handle_event(_event, _measurements, _metadata, _tally), do: :ok

  defp place(%{names: names}, what), do: Enum.find_index(@kinds ++ names, &(&1 == what)) + 1
end
