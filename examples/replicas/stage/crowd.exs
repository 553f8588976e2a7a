defmodule Replicas.Crowd do
  @moduledoc """
  Load as `wrk` makes it: so many connections, each asking again as soon as it is answered, until it is over.
  """

  @doc "Starts processes that call `ask` without a pause."
  def start(connections, ask) do
    over = :atomics.new(1, [])
    {over, for(_ <- 1..connections, do: Task.async(fn -> ask_again(over, ask) end))}
  end

  @doc "Waits until every process has the answer that it waits for."
  def stop({over, tasks}) do
    :atomics.put(over, 1, 1)
    Task.await_many(tasks)
    :ok
  end

  defp ask_again(over, ask) do
    if :atomics.get(over, 1) == 0 do
      ask.()
      ask_again(over, ask)
    end
  end
end
