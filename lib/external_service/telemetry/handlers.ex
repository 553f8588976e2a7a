defmodule ExternalService.Telemetry.Handlers do
  # The handlers of applications that do not have `:telemetry`, with its rules. They stand in one persistent term, a map
  # from event to handlers, because it is read on every call and written when an application starts.
  @moduledoc false

  require Logger

  @spec attach(term(), [list()], fun(), term()) :: :ok | {:error, :already_exists}
  def attach(id, events, handler, config) do
    update(fn handlers ->
      if known?(handlers, id),
        do: {{:error, :already_exists}, handlers},
        else: {:ok, Enum.reduce(events, handlers, &add(&2, &1, {id, handler, config}))}
    end)
  end

  @spec detach(term()) :: :ok | {:error, :not_found}
  def detach(id) do
    update(fn handlers ->
      if known?(handlers, id), do: {:ok, remove(handlers, id)}, else: {{:error, :not_found}, handlers}
    end)
  end

  @spec any?([list()]) :: boolean()
  def any?(events) do
    handlers = handlers()
    handlers != %{} and Enum.any?(events, &is_map_key(handlers, &1))
  end

  @spec execute(list(), map(), map()) :: :ok
  def execute(event, measurements, metadata) do
    case handlers() do
      %{^event => attached} -> Enum.each(attached, &run(&1, event, measurements, metadata))
      _nobody -> :ok
    end
  end

  defp run({id, handler, config}, event, measurements, metadata) do
    handler.(event, measurements, metadata, config)
  catch
    kind, reason ->
      detach(id)
      text = Exception.format(kind, reason, __STACKTRACE__)
      Logger.error("Handler #{inspect(id)} of event #{inspect(event)} failed and was detached.\n" <> text)
  end

  defp handlers, do: :persistent_term.get(__MODULE__, %{})

  # Reading, changing and writing back must not interleave with another process doing the same.
  defp update(change) do
    :global.trans({__MODULE__, self()}, fn -> change |> apply([handlers()]) |> store() end, [node()])
  end

  defp store({result, handlers}) do
    if handlers != handlers(), do: :persistent_term.put(__MODULE__, handlers)
    result
  end

  defp known?(handlers, id), do: Enum.any?(handlers, fn {_event, list} -> List.keymember?(list, id, 0) end)

  defp add(handlers, event, handler), do: Map.update(handlers, event, [handler], &(&1 ++ [handler]))

  defp remove(handlers, id) do
    for {event, list} <- handlers, [_ | _] = rest <- [List.keydelete(list, id, 0)], into: %{}, do: {event, rest}
  end
end
