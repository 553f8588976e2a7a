# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.ConcurrencyTest do
  use ExternalService.Case, async: true
  import ExternalService.Callers

  doctest ExternalService.Concurrency

  alias ExternalService.{Concurrency, ServiceSaturated}

  @rejected [:concurrency, :rejected]
  @waited [:concurrency, :waited]

  # Far longer than any test takes.
  @long 60_000

  describe "the limit" do
    test "lets as many calls run at once as it says, and refuses the next at once", %{service: s} do
      start_limited(s, limit: 3)
      holders = for _ <- 1..3, do: hold(s)
      refused(s)
      assert counts(s) == {3, 0}
      for pid <- holders, do: assert(finish(pid) == {:returned, :done})
      assert counts(s) == {0, 0}
      admitted(s)
    end

    test "tells who is refused how many hold a slot, and how many wait for one", %{service: s} do
      start_limited(s, limit: 2, wait: @long, queue: 1)
      for _ <- 1..2, do: hold(s)
      queue(s)
      error = refused(s)
      assert error.context == %{service: s, limit: 2, in_flight: 2, queued: 1}
      assert Exception.message(error) == "the service's concurrency limit is fully in use"
      assert ServiceSaturated.retryable?(error)
      assert ServiceSaturated.http_status(error) == 503
    end

    test "is raised by call!", %{service: s} do
      start_limited(s, limit: 1)
      hold(s)
      error = raised(fn -> ExternalService.call!(s, fn -> :ran end) end)
      assert %ServiceSaturated{context: %{service: ^s, limit: 1, in_flight: 1}} = error
    end

    test "counts no call that is over, and none that has not begun", %{service: s} do
      start_limited(s, limit: 1)
      assert counts(s) == {0, 0}
      assert ExternalService.call(s, fn -> counts(s) end) == {1, 0}
      assert counts(s) == {0, 0}
    end

    test "is kept when many processes call at once", %{service: s} do
      start_limited(s, limit: 3)
      inside = :atomics.new(1, [])

      results =
        together(50, fn _ ->
          for _ <- 1..200 do
            ExternalService.call(s, fn ->
              seen = :atomics.add_get(inside, 1, 1)
              :erlang.yield()
              :atomics.sub(inside, 1, 1)
              seen
            end)
          end
        end)

      {seen, refused} = results |> List.flatten() |> Enum.split_with(&is_integer/1)
      assert Enum.max(seen) <= 3
      assert length(seen) > 0
      assert Enum.all?(refused, &match?({:error, %ServiceSaturated{}}, &1))
      assert counts(s) == {0, 0}
    end

    test "is not there unless it is asked for", %{service: s} do
      ExternalService.start(s)
      for _ <- 1..100, do: hold(s)
      admitted(s)
      assert counts(s) == {0, 0}
      assert Concurrency.limit(s) == nil
      refute ExternalService.saturated?(s)
      assert Concurrency.reset(s) == :ok
    end

    test "of a million is a limit like any other", %{service: s} do
      start_limited(s, limit: 1_000_000)
      hold(s)
      assert Concurrency.limit(s) == 1_000_000
      assert counts(s) == {1, 0}
      refute ExternalService.saturated?(s)
    end

    test "of one service does not concern another", %{service: s} do
      other = {s, :other}
      on_exit(fn -> ExternalService.stop(other) end)
      start_limited(s, limit: 1)
      start_limited(other, limit: 1)
      hold(s)
      refused(s)
      admitted(other)
      assert {counts(s), counts(other)} == {{1, 0}, {0, 0}}
    end
  end

  describe "the counts" do
    test "are those of now", %{service: s} do
      start_limited(s, limit: 2, wait: @long)
      [one, _two] = for _ <- 1..2, do: hold(s)
      assert ExternalService.saturated?(s)
      waiter = queue(s)
      assert {Concurrency.limit(s), counts(s)} == {2, {2, 1}}
      finish(one)
      entered(waiter)
      assert counts(s) == {2, 0}
      finish(waiter)
      assert counts(s) == {1, 0}
      refute ExternalService.saturated?(s)
    end

    test "of a service that was never started, or is stopped, are those of one without a limit", %{service: s} do
      for _ <- 1..2 do
        assert counts(s) == {0, 0}
        assert Concurrency.limit(s) == nil
        refute ExternalService.saturated?(s)
        assert Concurrency.reset(s) == {:error, :not_found}
        start_limited(s, limit: 1)
        hold(s)
        ExternalService.stop(s)
      end
    end
  end

  describe "a slot comes back" do
    for {word, how} <- [
          returns: quote(do: fn -> :value end),
          raises: quote(do: fn -> raise "oops" end),
          throws: quote(do: fn -> throw(:ball) end),
          exits: quote(do: fn -> exit(:gone) end),
          fails: quote(do: fn -> :erlang.error(:badarg) end)
        ] do
      test "when its holder #{word}, before the caller goes on", %{service: s} do
        start_limited(s, limit: 1)
        pid = hold(s)
        outcome = finish(pid, unquote(how))
        assert counts(s) == {0, 0}
        assert outcome != {:returned, :done}
        assert Process.alive?(pid)
        admitted(s)
      end
    end

    for reason <- [:kill, :shutdown, :normal_looking, {:shutdown, :restart}] do
      test "soon after its holder was ended by an exit signal #{inspect(reason)}", %{service: s} do
        start_limited(s, limit: 1)
        pid = hold(s)
        refused(s)
        kill(pid, unquote(reason))
        soon(fn -> counts(s) == {0, 0} end)
        admitted(s)
      end
    end

    test "when a task that holds it is shut down", %{service: s} do
      start_limited(s, limit: 1)
      parent = self()

      task =
        Task.async(fn ->
          ExternalService.call(s, fn ->
            send(parent, :inside)
            receive do: (:never -> :ok)
          end)
        end)

      assert_receive :inside, @long
      Task.shutdown(task, :brutal_kill)
      soon(fn -> counts(s) == {0, 0} end)
    end

    test "when a process that its holder is linked to crashes", %{service: s} do
      start_limited(s, limit: 1)
      parent = self()

      pid =
        spawn(fn ->
          ExternalService.call(s, fn ->
            spawn_link(fn -> receive(do: (:crash -> exit(:crashed))) end) |> then(&send(parent, {:linked, &1}))
            receive do: (:never -> :ok)
          end)
        end)

      assert_receive {:linked, linked}, @long
      ref = Process.monitor(pid)
      send(linked, :crash)
      assert_receive {:DOWN, ^ref, _, _, :crashed}, @long
      soon(fn -> counts(s) == {0, 0} end)
    end

    test "once: a process that dies after its call gives nothing back", %{service: s} do
      start_limited(s, limit: 2)
      hold(s)

      for _ <- 1..100 do
        pid = hold(s)
        finish(pid)
        kill(pid)
      end

      assert counts(s) == {1, 0}
      hold(s)
      refused(s)
    end

    test "a hundred times over, holders killed one after the other", %{service: s} do
      start_limited(s, limit: 1)

      for _ <- 1..100 do
        kill(hold(s))
        soon(fn -> counts(s) == {0, 0} end)
      end
    end
  end

  describe "one process" do
    test "may hold several slots of a service: nested calls take one each", %{service: s} do
      start_limited(s, limit: 3)

      nested = fn ->
        inner = ExternalService.call(s, fn -> counts(s) end)
        [counts(s), inner]
      end

      assert ExternalService.call(s, nested) == [{1, 0}, {2, 0}]
      assert counts(s) == {0, 0}
    end

    test "that holds all slots is refused, not blocked, without a wait", %{service: s} do
      start_limited(s, limit: 1)
      inner = fn -> ExternalService.call(s, fn -> :inner end) end
      assert {:error, %ServiceSaturated{context: %{in_flight: 1}}} = ExternalService.call(s, inner)
    end

    test "that holds all slots waits no longer than the wait", %{service: s} do
      clock = start_on_clock(s, concurrency: [limit: 1, wait: 50])
      inner = fn -> ExternalService.call(s, fn -> :inner end) end
      assert {:error, %ServiceSaturated{}} = ExternalService.call(s, inner)
      assert VirtualClock.now(clock) == 50
      assert counts(s) == {0, 0}
    end

    # Calls the services one inside the other, all of them `rounds` times, and `fun` in the middle.
    defp nest([], fun), do: fun.()
    defp nest([service | services], fun), do: ExternalService.call(service, fn -> nest(services, fun) end)

    defp start_many(service, count, concurrency) do
      names = for n <- 1..count, do: {service, n}
      on_exit(fn -> Enum.each(names, &ExternalService.stop/1) end)
      for name <- names, do: start_limited(name, concurrency)
      names
    end

    test "may hold slots of many services, each several times over, and returns every one", %{service: s} do
      names = start_many(s, 12, limit: 5)
      path = List.flatten(List.duplicate(names, 5))
      held = nest(path, fn -> Enum.map(names, &counts/1) end)
      assert held == List.duplicate({5, 0}, 12)
      assert Enum.map(names, &counts/1) == List.duplicate({0, 0}, 12)
    end

    test "gives back the right slots on the way out, level by level", %{service: s} do
      names = [a, b, c, d, e, f] = start_many(s, 6, limit: 2)
      look = fn -> Enum.map(names, &Concurrency.in_flight/1) end

      after_inner = fn service -> fn -> [ExternalService.call(service, look), look.()] end end

      result = nest([a, b, c, d, e], fn -> nest([f, a], after_inner.(b)) end)
      assert result == [[2, 2, 1, 1, 1, 1], [2, 1, 1, 1, 1, 1]]
      assert look.() == [0, 0, 0, 0, 0, 0]
    end

    test "that is killed gives back all it holds, of every service", %{service: s} do
      names = start_many(s, 12, limit: 3)
      path = names ++ names ++ names
      parent = self()
      pid = spawn(fn -> nest(path, fn -> send(parent, :deep) && receive(do: (:never -> :ok)) end) end)
      assert_receive :deep, @long
      assert Enum.map(names, &counts/1) == List.duplicate({3, 0}, 12)
      kill(pid)
      soon(fn -> Enum.all?(names, &(counts(&1) == {0, 0})) end)
    end

    test "keeps one entry in its dictionary, however many services it calls", %{service: s} do
      names = start_many(s, 20, limit: 1)

      entries =
        Task.async(fn ->
          before = Process.get_keys()
          first = ExternalService.call(hd(names), fn -> Process.get_keys() -- before end)
          for name <- names, do: ExternalService.call(name, fn -> :fine end)
          nest(names, fn -> :fine end)
          {first, Process.get_keys() -- before}
        end)
        |> Task.await()

      assert {[key], [key]} = entries
    end

    test "that wipes its dictionary inside a call still returns its slot, and can call again", %{service: s} do
      start_limited(s, limit: 1)

      Task.async(fn ->
        for _ <- 1..3 do
          assert ExternalService.call(s, fn -> :erlang.erase() && :erlang.garbage_collect() && counts(s) end) == {1, 0}
          assert counts(s) == {0, 0}
        end
      end)
      |> Task.await()
    end

    test "holds no slot while it waits to try again", %{service: s} do
      seen = self()
      sleep = fn _ms -> send(seen, {:in_backoff, counts(s)}) end
      options = [concurrency: [limit: 1], sleep_function: sleep, circuit_breaker: [tolerate: :infinity]]
      ExternalService.start(s, options)
      assert {:error, %RetriesExhausted{}} = ExternalService.call(s, [max_attempts: 3], fn -> :retry end)
      for _ <- 1..2, do: assert_received({:in_backoff, {0, 0}})
    end
  end

  describe "reset/1" do
    test "frees every slot; those who held one are no longer counted", %{service: s} do
      start_limited(s, limit: 2)
      [one, two] = for _ <- 1..2, do: hold(s)
      assert Concurrency.reset(s) == :ok
      assert counts(s) == {0, 0}
      next = hold(s)
      finish(one)
      kill(two)
      assert counts(s) == {1, 0}
      finish(next)
      assert counts(s) == {0, 0}
    end

    test "lets waiters in, as many as there are slots", %{service: s} do
      start_limited(s, limit: 2, wait: @long)
      for _ <- 1..2, do: hold(s)
      [first, second, third] = for _ <- 1..3, do: queue(s)
      assert Concurrency.reset(s) == :ok
      entered(first)
      entered(second)
      assert counts(s) == {2, 1}
      refute_received {:inside, ^third}
    end

    test "lets more waiters in than one turn of the core does", %{service: s} do
      start_limited(s, limit: 300, wait: @long)
      for _ <- 1..300, do: hold(s)
      waiters = for _ <- 1..300, do: queue(s)
      assert Concurrency.reset(s) == :ok
      Enum.each(waiters, &entered/1)
      assert counts(s) == {300, 0}
    end

    test "frees leased slots as well", %{service: s} do
      start_on_clock(s, concurrency: [limit: 1, reclaim_after: 100])
      holder = hold(s)
      assert Concurrency.reset(s) == :ok
      next = hold(s)
      finish(holder)
      assert counts(s) == {1, 0}
      finish(next)
    end
  end

  describe "the events" do
    test "tell of a wait that ended with a slot: the limit and how long it took", %{service: s} do
      start_limited(s, limit: 1, wait: @long)
      Recorder.attach(s, [@rejected, @waited])
      holder = hold(s)
      waiter = queue(s)
      let_pass(5)
      finish(holder)
      entered(waiter)
      assert [{@waited, %{limit: 1, wait_time: ms} = measurements, %{service: ^s}}] = Recorder.events()
      assert map_size(measurements) == 2
      assert is_integer(ms) and ms >= 5
    end

    test "tell of a wait that ended without one", %{service: s} do
      start_on_clock(s, concurrency: [limit: 2, wait: 75])
      for _ <- 1..2, do: hold(s)
      Recorder.attach(s, [@rejected, @waited])
      refused(s)
      assert [{@rejected, %{limit: 2, wait_time: 75} = measurements, %{service: ^s}}] = Recorder.events()
      assert map_size(measurements) == 2
    end

    test "say nothing of a call that finds a free slot", %{service: s} do
      start_limited(s, limit: 1, wait: @long)
      Recorder.attach(s, [@rejected, @waited])
      for _ <- 1..10, do: admitted(s)
      assert Recorder.events() == []
    end
  end

  describe "the options" do
    test "may not ask to wait for ever, and the error says why", %{service: s} do
      for options <- [[limit: 1, wait: :infinity], [wait: :infinity], [limit: :nonsense, wait: :infinity]] do
        error = raised(fn -> ExternalService.start(s, concurrency: options) end)
        assert %ArgumentError{message: message} = error

        assert String.starts_with?(
                 message,
                 "ExternalService.start(#{inspect(s)}, ...) sets concurrency: [wait: :infinity], which is not allowed."
               )

        assert message =~ "as long as the service hangs"
        assert s not in ExternalService.services()
      end
    end

    test "need a limit and no more", %{service: s} do
      error = raised(fn -> ExternalService.start(s, concurrency: [wait: 1]) end)
      assert %ValidationError{key: :limit, keys_path: [:concurrency]} = error
      assert Exception.message(error) =~ "required :limit option not found"
      start_limited(s, limit: 1)
      hold(s)
      refused(s)
    end
  end

  describe "start/2 on a running service" do
    test "gives it fresh slots, and leaves those alone who hold or wait for old ones", %{service: s} do
      start_limited(s, limit: 1, wait: @long)
      holder = hold(s)
      waiter = queue(s)
      start_limited(s, limit: 1)
      assert counts(s) == {0, 0}
      next = hold(s)
      finish(holder)
      entered(waiter)
      assert counts(s) == {1, 0}
      finish(waiter)
      assert counts(s) == {1, 0}
      finish(next)
      assert counts(s) == {0, 0}
    end

    test "or stop/1 does not strand a waiter", %{service: s} do
      start_limited(s, limit: 1, wait: @long)
      holder = hold(s)
      waiter = queue(s)
      ExternalService.stop(s)
      finish(holder)
      entered(waiter)
      assert finish(waiter) == {:returned, :done}
    end
  end
end
