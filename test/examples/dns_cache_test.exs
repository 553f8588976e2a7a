# SPDX-License-Identifier: Apache-2.0
Code.require_file("../../examples/dns_cache/load.exs", __DIR__)

defmodule DnsCacheTest do
  # The whole forwarder with a real memcached, asked by `dig`. What has to wait for memcached's or the breaker's time is
  # polled, a bounded number of times.
  use ExUnit.Case, async: false

  import ExternalService.Callers, only: [soon: 1]

  alias DnsCache.{Authority, Caches, Daemon, Dig, LocalCache, Upstream}

  @moduletag timeout: 120_000

  @name "www.example.test"
  @address "192.0.2.80"
  @zone %{
    {@name, :a} => {300, {192, 0, 2, 80}},
    {"example.test", :mx} => {600, {10, ~c"mail.example.test"}},
    {"fleeting.example.test", :a} => {0, {192, 0, 2, 81}}
  }

  describe "the forwarder" do
    setup do
      memcached = Daemon.start()
      authority = start_supervised!({Authority, @zone})
      clock = :atomics.new(1, [])
      now = System.system_time(:millisecond)

      start_supervised!(
        {DnsCache,
         memcached: memcached.port,
         upstream: Authority.address(authority),
         clock: fn -> now + :atomics.get(clock, 1) end}
      )

      on_exit(fn -> Enum.each([Caches, Upstream], &ExternalService.stop/1) end)
      {:ok, memcached: memcached, authority: authority, port: DnsCache.port(), clock: clock}
    end

    test "answers from memcached what it was asked before", %{authority: authority, port: port} do
      learn(port, authority, @name)
      asked = Authority.asked(authority)
      assert %{status: "NOERROR", records: [{300, @address}]} = Dig.ask(port, @name)
      assert %{status: "NOERROR", records: [{300, @address}]} = Dig.ask(port, "WWW.Example.TEST")
      assert Authority.asked(authority) == asked
      assert LocalCache.hits(LocalCache) == 0
    end

    test "keeps other types and names that do not exist", %{authority: authority, port: port} do
      for {name, type, status} <- [{"example.test", "MX", "NOERROR"}, {"nowhere.test", "A", "NXDOMAIN"}] do
        learn(port, authority, name, type)
        asked = Authority.asked(authority)
        assert %{status: ^status} = Dig.ask(port, name, type)
        assert Authority.asked(authority) == asked
      end
    end

    test "does not keep what has no time to live", %{authority: authority, port: port} do
      for asked <- 1..3 do
        assert %{records: [{0, "192.0.2.81"}]} = Dig.ask(port, "fleeting.example.test")
        assert Authority.asked(authority) == asked
      end
    end

    test "says of an answer from either cache how long it is still good, and asks anew when it is not", context do
      %{authority: authority, port: port, clock: clock, memcached: memcached} = context
      learn(port, authority, @name)
      asked = Authority.asked(authority)
      :atomics.add(clock, 1, 100_000)
      assert %{records: [{200, @address}]} = Dig.ask(port, @name)
      Daemon.kill(memcached)
      :atomics.add(clock, 1, 100_000)
      assert %{records: [{100, @address}]} = Dig.ask(port, @name)
      assert Authority.asked(authority) == asked
      :atomics.add(clock, 1, 100_000)
      assert %{records: [{300, @address}]} = Dig.ask(port, @name)
      assert Authority.asked(authority) == asked + 1
    end

    test "answers from the local cache while memcached is dead, and goes back to it by itself", context do
      %{authority: authority, port: port, memcached: memcached} = context
      learn(port, authority, @name)
      asked = Authority.asked(authority)

      memcached = Daemon.kill(memcached)

      for hits <- 1..10 do
        assert %{records: [{_ttl, @address}]} = Dig.ask(port, @name)
        assert LocalCache.hits(LocalCache) == hits
        if hits >= 3, do: assert(Caches.state() in [:open, :half_open])
      end

      assert Caches.counts().rejected > 0
      assert Authority.asked(authority) == asked

      Daemon.start(memcached)

      soon(fn ->
        assert %{records: [{_ttl, @address}]} = Dig.ask(port, @name)
        Caches.state() == :closed
      end)

      learn(port, authority, @name)
      {asked, hits} = {Authority.asked(authority), LocalCache.hits(LocalCache)}
      assert %{records: [{_ttl, @address}]} = Dig.ask(port, @name)
      assert {Authority.asked(authority), LocalCache.hits(LocalCache)} == {asked, hits}
    end

    test "keeps in the local cache what it learns while memcached is dead", context do
      %{authority: authority, port: port, memcached: memcached} = context
      Daemon.kill(memcached)
      learn(port, authority, "example.test", "MX")
      asked = Authority.asked(authority)
      assert %{records: [{_ttl, "10 mail.example.test."}]} = Dig.ask(port, "example.test", "MX")
      assert Authority.asked(authority) == asked
    end

    test "answers while memcached hangs, and stops waiting for it", context do
      %{authority: authority, port: port, memcached: memcached} = context
      learn(port, authority, @name)
      Daemon.signal(memcached, "STOP")

      # At once, or after a second if memcached was waited for.
      soon(fn ->
        assert %{records: [{_ttl, @address}]} = Dig.ask(port, @name)
        Caches.state() != :closed
      end)

      Daemon.signal(memcached, "CONT")

      soon(fn ->
        assert %{records: [{_ttl, @address}]} = Dig.ask(port, @name)
        Caches.state() == :closed
      end)
    end
  end

  describe "memcached" do
    test "dies with the process that started it, however that ends" do
      test = self()
      {starter, monitor} = spawn_monitor(fn -> send(test, Daemon.start()) && Process.sleep(:infinity) end)
      assert_receive %Daemon{port: port}, 30_000
      assert Daemon.listening?(port)
      Process.exit(starter, :kill)
      assert_receive {:DOWN, ^monitor, :process, ^starter, :killed}
      soon(fn -> not Daemon.listening?(port) end)
    end
  end

  describe "the demo" do
    test "ends well when the local cache stands in and the breaker closes by itself" do
      assert {output, 0} = run("examples/dns_cache")
      assert output =~ ~r/from upstream +breaker closed/
      assert output =~ ~r/from memcached +breaker closed/
      assert output =~ ~r/from local cache +breaker open/
      assert output =~ "While memcached was dead 8 questions were answered by the local cache"
    end

    @tag :tmp_dir
    test "fails when the breaker can not open", %{tmp_dir: tmp_dir} do
      sabotage(tmp_dir, "caches.exs", "consecutive: 3", "consecutive: 1_000")
      assert {output, 1} = run(tmp_dir)
      assert output =~ "The breaker did not open while memcached was dead."
    end

    @tag :tmp_dir
    test "fails when the breaker does not close", %{tmp_dir: tmp_dir} do
      sabotage(tmp_dir, "caches.exs", "reset: 1_000", "reset: 60_000")
      assert {output, 1} = run(tmp_dir)
      assert output =~ "The breaker did not close when memcached was back."
    end

    @tag :tmp_dir
    test "fails when the local cache was not told", %{tmp_dir: tmp_dir} do
      sabotage(tmp_dir, "caches.exs", ":ok = Cache.store(caches.local, question, answer, now)", "")
      assert {output, 1} = run(tmp_dir)
      assert output =~ "The local cache did not stand in for memcached."
    end
  end

  # Asks until the answer is kept: a client has its answer before that.
  defp learn(port, authority, name, type \\ "A") do
    soon(fn ->
      asked = Authority.asked(authority)
      refute Dig.ask(port, name, type) == :no_answer
      Authority.asked(authority) == asked
    end)
  end

  # A copy of the example, with one thing changed, and faster.
  defp sabotage(folder, file, text, replacement) do
    File.cp_r!("examples/dns_cache", folder)
    path = Path.join(folder, file)
    source = File.read!(path)
    assert source =~ text
    File.write!(path, String.replace(source, text, replacement))
    demo = Path.join(folder, "demo.exs")
    File.write!(demo, String.replace(File.read!(demo), "@between_ms 300", "@between_ms 100"))
  end

  defp run(folder) do
    arguments = ["run", "--no-compile", Path.join(folder, "demo.exs")]
    System.cmd("mix", arguments, env: [{"MIX_ENV", "test"}], stderr_to_stdout: true)
  end
end
