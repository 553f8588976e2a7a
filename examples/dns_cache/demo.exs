# memcached is killed under a DNS forwarder and started again, and who asks gets answers all the while. Run it with
# `make demo-dns`, or with
#
#     mix run examples/dns_cache/demo.exs
#
# What an application would write is in caches.exs; the rest is what it takes to have something to write it for.

Code.require_file("load.exs", __DIR__)

defmodule DnsCache.Demo do
  alias DnsCache.{Authority, Caches, Daemon, Dig, LocalCache, Upstream}

  @zone %{{"www.example.test", :a} => {300, {192, 0, 2, 80}}}
  @name "www.example.test"
  @unknown "nowhere.example.test"

  @between_ms 300
  @while_dead 8
  @until_closed 20

  @doc "Runs the demo. Returns `:ok`, or what went wrong."
  def run do
    memcached = Daemon.start()
    {:ok, authority} = Authority.start_link(@zone)
    {:ok, forwarder} = DnsCache.start_link(memcached: memcached.port, upstream: Authority.address(authority))

    rows = play(memcached, authority)

    Supervisor.stop(forwarder)
    Enum.each([Caches, Upstream], &ExternalService.stop/1)
    with :ok <- verdict(rows), do: summary(rows)
  end

  defp play(memcached, authority) do
    IO.puts("A DNS forwarder listens on 127.0.0.1, port #{DnsCache.port()}, and keeps its answers in memcached.")

    caption(
      "Each question is asked twice: the server upstream answers, then memcached, a name that does not exist too."
    )

    alive = for name <- [@name, @name, @unknown, @unknown], do: row(authority, name)

    caption("kill -9 memcached. The local cache answers at once; after three failures the breaker is open.")
    memcached = Daemon.kill(memcached)
    dead = for _ <- 1..@while_dead, do: row(authority, @name)

    caption("memcached is started again, empty. Nobody tells the forwarder: the questions close the breaker.")
    memcached = Daemon.start(memcached)
    back = until_closed(authority, @until_closed)

    caption("The answer is in memcached again.")
    again = for _ <- 1..2, do: row(authority, @name)
    Daemon.kill(memcached)

    %{alive: alive, dead: dead, back: back, again: again}
  end

  defp until_closed(authority, tries) do
    case row(authority, @name) do
      %{breaker: breaker} = row when breaker == :closed or tries == 1 -> [row]
      row -> [row | until_closed(authority, tries - 1)]
    end
  end

  # Who answered is told by who was asked.
  defp row(authority, name) do
    Process.sleep(@between_ms)
    before = {Authority.asked(authority), LocalCache.hits(LocalCache)}
    reply = Dig.ask(DnsCache.port(), name)
    from = source(before, {Authority.asked(authority), LocalCache.hits(LocalCache)})
    print(%{name: name, reply: reply, from: from, breaker: Caches.state()})
  end

  defp source({asked, hits}, {asked, hits}), do: "memcached"
  defp source({asked, _hits}, {asked, _more}), do: "local cache"
  defp source(_before, _more_asked), do: "upstream"

  defp print(row) do
    columns = [{row.name, 22}, {says(row.reply), 26}, {"from #{row.from}", 18}, {"breaker #{row.breaker}", 20}]
    text = for {text, width} <- columns, do: String.pad_trailing(text, width)
    IO.puts(["    ", text, took(row.reply)])
    row
  end

  defp says(:no_answer), do: "no answer"
  defp says(%{status: "NOERROR", records: [{ttl, data}]}), do: "#{data}, TTL #{ttl}"
  defp says(%{status: status}), do: status

  defp took(:no_answer), do: ""
  defp took(%{ms: ms}), do: "#{ms} ms"

  defp caption(text), do: IO.puts("\n  #{text}\n")

  defp verdict(rows) do
    cond do
      not Enum.all?(List.flatten(Map.values(rows)), &right?/1) -> {:error, "A question was not answered."}
      froms(rows.alive) != ~w(upstream memcached upstream memcached) -> {:error, "memcached did not keep an answer."}
      Enum.uniq(froms(rows.dead)) != ["local cache"] -> {:error, "The local cache did not stand in for memcached."}
      List.last(rows.dead).breaker == :closed -> {:error, "The breaker did not open while memcached was dead."}
      List.last(rows.back).breaker != :closed -> {:error, "The breaker did not close when memcached was back."}
      List.last(rows.again).from != "memcached" -> {:error, "memcached did not answer when it was back."}
      true -> :ok
    end
  end

  defp froms(rows), do: Enum.map(rows, & &1.from)

  defp right?(%{name: @name, reply: %{status: "NOERROR", records: [{_ttl, "192.0.2.80"}]}}), do: true
  defp right?(%{name: @unknown, reply: %{status: "NXDOMAIN", records: []}}), do: true
  defp right?(_row), do: false

  defp summary(rows) do
    slowest = rows.dead |> Enum.map(& &1.reply.ms) |> Enum.max()

    IO.puts("""

      While memcached was dead #{@while_dead} questions were answered by the local cache, the slowest in #{slowest} ms,
      and none was passed on. The breaker opened, and it closed by itself when memcached was back.
    """)
  end
end

with {:error, message} <- DnsCache.Demo.run() do
  IO.puts(:stderr, message)
  exit({:shutdown, 1})
end
