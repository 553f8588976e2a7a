# SPDX-License-Identifier: Apache-2.0
Code.require_file("../../../examples/dns_cache/load.exs", __DIR__)

defmodule DnsCache.CachesTest do
  # The two caches are stand-ins that say what happened to them, and the breaker's clock is virtual.
  use ExUnit.Case, async: false

  alias DnsCache.Caches
  alias ExternalService.VirtualClock

  @question {~c"www.example.test", :a, :in}

  defmodule StandIn do
    @behaviour DnsCache.Cache

    @impl true
    def fetch({name, results}, _question, _now), do: tell(name, :fetch, results)

    @impl true
    def store({name, results}, _question, _answer, _now), do: tell(name, :store, results)

    defp tell(name, what, results) do
      send(self(), {name, what})
      Map.fetch!(results, what)
    end
  end

  setup do
    clock = VirtualClock.new()
    start_supervised!({Caches, clock: clock})
    on_exit(fn -> ExternalService.stop(Caches) end)
    {:ok, clock: clock}
  end

  @dead %{fetch: {:error, :timeout}, store: {:error, :timeout}}
  @alive %{fetch: {:ok, :from_memcached}, store: :ok}

  defp caches(remote),
    do: %Caches{
      remote: {StandIn, {:remote, remote}},
      local: {StandIn, {:local, %{fetch: {:ok, :from_local}, store: :ok}}}
    }

  defp fetch(remote), do: Caches.fetch(caches(remote), @question, 0)
  defp store(remote), do: Caches.store(caches(remote), @question, :answer, 0)

  defp open, do: for(_ <- 1..3, do: fetch(@dead))

  defp told do
    receive do
      message -> [message | told()]
    after
      0 -> []
    end
  end

  test "a lookup asks memcached, and the local cache only if that fails" do
    assert fetch(@alive) == {:ok, :from_memcached}
    assert told() == [remote: :fetch]
    assert fetch(@dead) == {:ok, :from_local}
    assert told() == [remote: :fetch, local: :fetch]
  end

  test "what memcached does not have is a miss, whatever the local cache has" do
    assert fetch(%{fetch: :miss}) == :miss
    assert told() == [remote: :fetch]
  end

  test "an answer is stored in both" do
    assert store(@alive) == :ok
    assert told() == [local: :store, remote: :store]
  end

  test "an answer is stored in the local cache when memcached fails, and when it is not asked" do
    assert store(@dead) == :ok
    assert told() == [local: :store, remote: :store]
    open()
    told()
    assert store(@alive) == :ok
    assert told() == [local: :store]
  end

  test "three failures in a row open the breaker, then it refuses each lookup and memcached is not asked" do
    fetch(@dead)
    store(@dead)
    assert Caches.state() == :closed
    fetch(@dead)
    assert Caches.state() == :open
    told()
    assert fetch(@alive) == {:ok, :from_local}
    assert told() == [local: :fetch]
    assert Caches.counts().rejected == 1
  end

  test "misses do not open the breaker" do
    for _ <- 1..10, do: fetch(%{fetch: :miss})
    assert Caches.state() == :closed
  end

  test "the first lookup after the open time closes the breaker if memcached is back", %{clock: clock} do
    open()
    VirtualClock.advance(clock, 1_000)
    assert fetch(@alive) == {:ok, :from_memcached}
    assert Caches.state() == :closed
  end

  test "the first lookup after the open time opens the breaker again if it is not", %{clock: clock} do
    open()
    VirtualClock.advance(clock, 1_000)
    assert fetch(@dead) == {:ok, :from_local}
    assert Caches.state() == :open
  end
end
