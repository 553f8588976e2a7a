# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.RateLimiter.LocalTest do
  use ExternalService.Case, async: true

  alias ExternalService.{RateLimited, RateLimiter}

  # On a clock that stands still unless the test moves it: waits are recorded.
  defp start(service, rate_limit) do
    start_on_clock(service, rate_limit: rate_limit, sleep_function: recording_sleep())
  end

  # One request: 0 or the wait if it went, else `{:refused, retry_after}`.
  defp turn(service) do
    case RateLimiter.request(service) do
      :ok -> Enum.sum(slept())
      {:error, %RateLimited{context: %{retry_after: ms}}} -> {:refused, ms}
    end
  end

  defp goes?(service), do: turn(service) == 0

  # How many of `times` requests go, with `ms` between them.
  defp going(service, clock, times, ms) do
    Enum.count(1..times, fn _ ->
      went = goes?(service)
      VirtualClock.advance(clock, ms)
      went
    end)
  end

  describe "the burst" do
    test "is the whole limit at once, and then nothing", %{service: s} do
      for limit <- [1, 2, 3, 7, 1000] do
        start(s, limit: limit, per: 1000, wait: false)
        for _ <- 1..limit, do: assert(goes?(s))
        for _ <- 1..10, do: refute(goes?(s))
      end
    end

    test "is not larger after a year in which nobody called", %{service: s} do
      clock = start(s, limit: 7, per: 1000, wait: false)

      for _ <- 1..3 do
        assert going(s, clock, 100, 0) == 7
        VirtualClock.advance(clock, :timer.hours(24 * 365))
      end
    end

    test "comes back call by call, each after its share of the time", %{service: s} do
      clock = start(s, limit: 4, per: 1000, wait: false)
      assert going(s, clock, 10, 0) == 4
      VirtualClock.advance(clock, 249)
      assert going(s, clock, 10, 0) == 0
      VirtualClock.advance(clock, 1)
      assert going(s, clock, 10, 0) == 1
      VirtualClock.advance(clock, 750)
      assert going(s, clock, 10, 0) == 3
      VirtualClock.advance(clock, 1_000_000)
      assert going(s, clock, 10, 0) == 4
    end
  end

  describe "the rate" do
    test "is the limit in the long run, to the call, however time and limit divide", %{service: s} do
      for {limit, per} <- [{3, 10}, {7, 10}, {1, 3}, {10, 7}, {9, 10}, {99, 100}] do
        clock = start(s, limit: limit, per: per, wait: false)
        assert until_refused(s) == limit

        went =
          for _ <- 1..(1000 * per) do
            VirtualClock.advance(clock, 1)
            until_refused(s)
          end

        assert {limit, per, Enum.sum(went)} == {limit, per, 1000 * limit}
      end
    end

    defp until_refused(service), do: if(goes?(service), do: 1 + until_refused(service), else: 0)

    test "of 50 in a second with a burst of 5 is about 500 calls in ten seconds", %{service: s} do
      clock = start(s, limit: 5, per: 100, wait: false)
      assert going(s, clock, 10_000, 1) in 500..505
    end

    test "never lets more go in any stretch of time than one burst and what it brings", %{service: s} do
      :rand.seed(:exsss, {1, 2, 3})

      for {limit, per} <- [{3, 10}, {5, 100}, {1, 7}] do
        clock = start(s, limit: limit, per: per, wait: false)

        times =
          for _ <- 1..2000, VirtualClock.advance(clock, :rand.uniform(per) - 1), goes?(s), do: VirtualClock.now(clock)

        for {first, n} <- Enum.with_index(times), {time, m} <- Enum.with_index(Enum.slice(times, n, 4 * limit)) do
          assert (m + 1 - limit) * per <= (time - first) * limit
        end
      end
    end
  end

  describe "booking" do
    test "gives each waiting call the next place", %{service: s} do
      start(s, limit: 3, per: 10_000, wait: :infinity)
      assert for(_ <- 1..9, do: turn(s)) == [0, 0, 0, 3334, 6667, 10_000, 13_334, 16_667, 20_000]
    end

    test "3 per 10 s with a wait of 12 s: of 30 calls 3 go, 3 book, the last for 10 s, 24 are refused", %{service: s} do
      clock = start(s, limit: 3, per: 10_000, wait: 12_000)

      assert for(_ <- 1..30, do: turn(s)) ==
               [0, 0, 0, 3334, 6667, 10_000] ++ List.duplicate({:refused, 13_334}, 24)

      assert VirtualClock.now(clock) == 0
    end

    test "the same when 30 processes call together", %{service: s} do
      start(s, limit: 3, per: 10_000, wait: 12_000)
      results = together(30, fn _ -> RateLimiter.request(s) end)
      assert Enum.count(results, &(&1 == :ok)) == 6
      assert Enum.count(results, &match?({:error, %RateLimited{context: %{retry_after: 13_334}}}, &1)) == 24
      assert Enum.sort(slept()) == [3334, 6667, 10_000]
    end

    test "one after the other leaves nobody behind: every one of a herd goes at a time of its own", %{service: s} do
      start(s, limit: 10, per: 1000, wait: :infinity)
      together(200, fn _ -> :ok = RateLimiter.request(s) end)
      assert Enum.sort(slept()) == for(n <- 1..190, do: n * 100)
    end

    test "keeps the place until its time: a later call does not get it", %{service: s} do
      clock = start(s, limit: 1, per: 1000, wait: 1500)
      assert [turn(s), turn(s)] == [0, 1000]
      VirtualClock.advance(clock, 1000)
      assert [turn(s), turn(s)] == [1000, {:refused, 2000}]
    end
  end

  describe "many processes" do
    test "get no more than the limit between them", %{service: s} do
      start(s, limit: 5000, per: 3_600_000, wait: false)
      results = together(50, fn _ -> for(_ <- 1..200, do: RateLimiter.request(s)) end)
      assert results |> List.flatten() |> Enum.count(&(&1 == :ok)) == 5000
    end

    test "get no more than the rate between them while time passes", %{service: s} do
      clock = start(s, limit: 10, per: 100, wait: false)
      went = :counters.new(1, [])

      together(8, fn _ ->
        for _ <- 1..1000 do
          if RateLimiter.request(s) == :ok, do: :counters.add(went, 1, 1)
          VirtualClock.advance(clock, 1)
        end
      end)

      assert :counters.get(went, 1) <= 10 + div(8000, 10)
      assert :counters.get(went, 1) >= div(8000, 10)
    end
  end

  describe "as a backend" do
    test "checks, peeks, reserves, gives back and resets by its callbacks", %{service: s} do
      {:ok, limiter} = RateLimiter.Local.init(s, limit: 2, per: 1000, clock: VirtualClock.new())
      assert RateLimiter.Local.check(s, limiter) == :ok
      assert RateLimiter.Local.peek(s, limiter) == :ok
      assert {:ok, _place} = RateLimiter.Local.reserve(s, limiter, 1, false)
      assert RateLimiter.Local.check(s, limiter) == {:wait, 500}
      assert RateLimiter.Local.peek(s, limiter) == {:wait, 500}
      assert {:wait, 500, place} = RateLimiter.Local.reserve(s, limiter, 1, 500)
      assert RateLimiter.Local.peek(s, limiter) == {:wait, 1000}
      assert RateLimiter.Local.give_back(s, limiter, 1, place) == :ok
      assert RateLimiter.Local.peek(s, limiter) == {:wait, 500}
      assert RateLimiter.Local.reserve(s, limiter, 1, 499) == {:refused, 500}
      assert RateLimiter.Local.reserve(s, limiter, 3, :infinity) == {:refused, :infinity}
      assert RateLimiter.Local.reset(s, limiter) == :ok
      assert {:ok, _place} = RateLimiter.Local.reserve(s, limiter, 2, false)
      assert {:ok, _limiter} = RateLimiter.Local.change(s, limiter, limit: 4, per: 1000)
      assert RateLimiter.Local.peek(s, limiter) == {:wait, 250}
    end
  end

  if :os.type() == {:unix, :linux} do
    describe "the wall clock" do
      # A VM of its own, whose wall clock jumps when it writes to the file. What it prints last must be "survived".
      @script """
      alias ExternalService.{Concurrency, RateLimiter}
      Logger.configure(level: :none)
      [file] = System.argv()

      set = fn seconds ->
        File.open!(file, [:read, :write], &IO.binwrite(&1, <<seconds::signed-little-64>>))
      end

      wall = System.os_time(:second)
      hour = 3_600_000

      ExternalService.start(:slow, rate_limit: [limit: 2, per: hour, wait: false])
      for _ <- 1..2, do: :ok = RateLimiter.request(:slow)
      ExternalService.start(:quick, rate_limit: [limit: 1, per: 5, wait: hour])
      ExternalService.start(:held, concurrency: [limit: 1, wait: 20, reclaim_after: hour])
      test = self()

      spawn_link(fn ->
        ExternalService.call(:held, fn -> send(test, :inside) && receive(do: (:never -> :ok)) end)
      end)

      receive do: (:inside -> :ok)

      for hours <- [0, 1, -1, 0, 24 * 365, -24 * 365] do
        set.(hours * 3600)
        true = abs(System.os_time(:second) - wall - hours * 3600) < 600

        {:error, %{context: %{retry_after: ms}}} = RateLimiter.request(:slow)
        true = ms in (div(hour, 2) - 600_000)..div(hour, 2)
        for _ <- 1..3, do: :ok = RateLimiter.request(:quick)
        true = RateLimiter.peek(:quick) in [:ok | for(ms <- 1..5, do: {:wait, ms})]

        {:error, %{context: %{in_flight: 1, queued: 0}}} = ExternalService.call(:held, fn -> :taken end)
        1 = Concurrency.in_flight(:held)
      end

      IO.puts("survived")
      """

      @tag :tmp_dir
      test "may be set an hour or a year forth or back: nothing freezes and nothing floods", %{tmp_dir: dir} do
        [library, step] = for name <- ["wall_clock.so", "step"], do: Path.join(dir, name)
        [compiler | flags] = OptionParser.split(System.get_env("CC") || "cc")
        arguments = flags ++ ["-shared", "-fPIC", "-o", library, Path.expand("../../support/wall_clock.c", __DIR__)]
        assert {_, 0} = System.cmd(compiler, arguments, stderr_to_stdout: true)
        File.write!(step, <<0::64>>)

        ebin = Application.app_dir(:external_service, "ebin")
        preload = Enum.join(List.wrap(System.get_env("LD_PRELOAD")) ++ [Path.expand(library)], ":")
        environment = [{"LD_PRELOAD", preload}, {"WALL_CLOCK_STEP", Path.expand(step)}]

        {output, status} =
          System.cmd(System.find_executable("elixir"), ["-pa", ebin, "-e", @script, step],
            env: environment,
            stderr_to_stdout: true
          )

        assert status == 0, output
        assert output |> String.trim() |> String.split("\n") |> List.last() == "survived", output
      end
    end
  end
end
