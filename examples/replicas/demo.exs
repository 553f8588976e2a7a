# Three servers, one slow, one that dies and comes back, under a load that does not let up. Run it with
# `make demo-replicas`, or with
#
#     mix run examples/replicas/demo.exs
#
# What an application would write is in search.exs; the rest is what it takes to have something to write it for.

Code.require_file("load.exs", __DIR__)

defmodule Replicas.Demo do
  alias Replicas.{Crowd, Pace, Screen, Search, Server, Tally}

  @connections 24
  @servers [{"a", 10}, {"b", 10}, {"c", 60}]
  @names for {name, _ms} <- @servers, do: name

  # In ticks; times of the breaker, too.
  @even 5
  @busy 5
  @dead 8
  @until_closed 10
  @reset 2
  @ramp_up 6
  @after_ramp_up 2

  @doc "Runs the demo. Returns `:ok`, or what went wrong."
  def run do
    tally = Tally.start(@names)
    servers = for {name, ms} <- @servers, do: {name, start_server(tally, name, ms)}

    {:ok, service} =
      Search.start_link(
        endpoints: for({_name, server} <- servers, do: Server.endpoint(server)),
        circuit_breaker: [reset: Pace.ms(@reset), ramp_up: Pace.ms(@ramp_up)]
      )

    crowd = Crowd.start(@connections, &Search.find/0)
    seen = play(tally, Map.new(servers))
    Crowd.stop(crowd)
    Tally.stop()
    Agent.stop(service)
    ExternalService.stop(Search)
    with :ok <- verdict(seen), do: summary(seen)
  end

  defp start_server(tally, name, ms) do
    {:ok, server} = Server.start_link(name: name, answer_ms: ms, on_request: fn -> Tally.add(tally, name) end)
    server
  end

  defp play(tally, servers) do
    IO.puts("Three servers on 127.0.0.1, and #{@connections} connections that ask one of them again and again.")
    Screen.header(@servers)

    Screen.caption("In turn: each has the same share, and the calls pile up at the slow one.")
    {even, _} = ticks(tally, @even)

    Screen.caption("reconfigure(Search, balancer: :least_busy): the slow one gets what it can do.")
    :ok = ExternalService.reconfigure(Search, balancer: :least_busy)
    {busy, _} = ticks(tally, @busy)

    Screen.caption("b dies in the middle of its calls. They are repeated at the others, and b is out, probes apart.")
    Server.die(servers["b"])
    {dead, changes} = ticks(tally, @dead)

    Screen.caption("b is back. Nobody tells the service: the next probe does.")
    Server.come_back(servers["b"])
    {back, closed?} = until_closed(tally, @until_closed)

    ramp = for _ <- 1..(@ramp_up + @after_ramp_up), do: elem(ticks(tally, 1), 0)
    %{even: even, busy: busy, dead: dead, changes: changes, back: back, closed?: closed?, ramp: ramp}
  end

  # Returns what was counted in so many ticks, and the states that the breakers changed to.
  defp ticks(tally, count) do
    before = Tally.now(tally)
    changes = for _ <- 1..count, do: tick(tally, [])
    {Tally.since(Tally.now(tally), before), List.flatten(changes)}
  end

  defp tick(tally, until) do
    before = Tally.now(tally)
    changes = changes(System.monotonic_time(:millisecond) + Pace.ms(1), until)
    Screen.row(Tally.since(Tally.now(tally), before), ExternalService.endpoints(Search))
    changes
  end

  # Prints the changes until a time, or until one of them is to a state of `until`.
  defp changes(end_ms, until) do
    receive do
      {:changed, name, state, what} ->
        Screen.change(name, state, what)
        if state in until, do: [state], else: [state | changes(end_ms, until)]
    after
      max(0, end_ms - System.monotonic_time(:millisecond)) -> []
    end
  end

  # Growing begins there, and so does a tick.
  defp until_closed(tally, ticks) do
    before = Tally.now(tally)
    closed? = Enum.any?(1..ticks, fn _ -> :closed in tick(tally, [:closed]) end)
    {Tally.since(Tally.now(tally), before), closed?}
  end

  defp verdict(seen) do
    cond do
      failed(seen) > 0 -> {:error, "#{failed(seen)} calls failed, though there were servers that could answer."}
      not even?(seen.even) -> {:error, "The shares were not even when the servers were asked in turn."}
      not spared?(seen) -> {:error, "The slow server was not spared, or nothing was gained by it."}
      Enum.count(seen.changes, &(&1 == :open)) < 2 -> {:error, "The dead server was not out, or not probed."}
      seen.dead.missed * 10 > seen.dead.answered -> {:error, "Too many calls went to the dead server."}
      not seen.closed? -> {:error, "The server that was back was not found."}
      not grown?(seen.ramp) -> {:error, "The share of the server that was back did not grow, or did not grow slowly."}
      true -> :ok
    end
  end

  defp share(counts, name), do: Tally.share(counts, name, @names)

  defp failed(seen),
    do: Enum.sum(for counts <- [seen.even, seen.busy, seen.dead, seen.back | seen.ramp], do: counts.failed)

  defp even?(counts), do: Enum.all?(@names, &(abs(share(counts, &1) - 1 / 3) < 0.05))

  defp spared?(%{even: even, busy: busy}) do
    share(busy, "c") * 2 < min(share(busy, "a"), share(busy, "b")) and Tally.per_second(busy) > Tally.per_second(even)
  end

  defp grown?(ramp) do
    {first, last} = {hd(ramp), List.last(ramp)}
    share(first, "b") < share(last, "b") * 3 / 4 and share(last, "b") > share(last, "a") / 2
  end

  defp summary(%{even: even, busy: busy, dead: dead, ramp: ramp} = seen) do
    percent = fn counts, name -> counts |> share(name) |> Screen.percent() end

    IO.puts("""

      In turn the slow server had #{percent.(even, "c")} of the requests, and #{round(Tally.per_second(even))} calls a second were answered;
      the least busy first, it had #{percent.(busy, "c")}, and #{round(Tally.per_second(busy))} were.
      While b was dead #{dead.missed} attempts reached for it, and #{dead.answered} calls were answered. It was out, and
      probed #{Enum.count(seen.changes, &(&1 == :half_open))} times.
      When it was back its share grew from #{percent.(hd(ramp), "b")} to #{percent.(List.last(ramp), "b")}.
      No call failed.
    """)
  end
end

with {:error, message} <- Replicas.Demo.run() do
  IO.puts(:stderr, message)
  exit({:shutdown, 1})
end
