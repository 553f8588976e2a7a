defmodule ExternalService.Instances do
  # The `{service, key}` that were used: each with a breaker and limits of its own, made from the service's options when it
  # is first asked for. They come and go, so they stand in a table and not in persistent terms.
  #
  # A table never has more than `:max_instances` rows. To make room, a hand goes round it: a row that nobody has used since
  # the hand last came by goes, if its breaker is closed and has no failure to remember, and none of its calls is in
  # flight (the clock algorithm of page replacement). An open breaker stays. Where the hand finds none, the newcomer is
  # not remembered: its call is made, and what it would have taught is lost.
  @moduledoc false

  alias ExternalService.CircuitBreaker.Installed
  alias ExternalService.{Concurrency, Native, RateLimiter, Retry, Service}
  alias ExternalService.Instances.Tables

  # How many rows the hand looks at for one newcomer.
  @looks 32

  # The keys of a table's own rows; names are pairs, so they are none of those.
  @count :count
  @hand :hand

  @doc "Returns the instance of a service for a key, made if need be."
  @spec get(Service.t(), term()) :: Service.t()
  def get(%Service{instances: nil} = service, key), do: service |> Tables.of() |> get_in_table(key)
  def get(service, key), do: get_in_table(service, key)

  defp get_in_table(%Service{instances: table, origin: origin} = service, key) do
    case look_up(table, key) do
      [{_key, ^origin, breaker, rate_limit, concurrency, budget, _seen}] ->
        instance(service, key, breaker, rate_limit, concurrency, budget)

      rows ->
        create(service, key, rows)
    end
  end

  # The table may be gone, with the application or with a service that was stopped.
  defp look_up(table, key) do
    :ets.lookup(table, {key})
  rescue
    ArgumentError -> :no_table
  end

  defp instance(%Service{name: name} = service, key, breaker, rate_limit, concurrency, budget) do
    %{
      service
      | name: {name, key},
        breaker: breaker,
        rate_limit: rate_limit,
        concurrency: concurrency,
        budget: budget,
        argument: {:ok, key},
        part: nil
    }
  end

  # Whose row was made of other options makes place for the new one: a state that a hand has set goes over.
  defp create(service, key, rows) do
    {{key}, _origin, breaker, rate_limit, concurrency, budget, _seen} = row = row(service, key)
    name = {service.name, key}

    case rows do
      :no_table ->
        instance(service, key, breaker, rate_limit, concurrency, budget)

      [{_key, _other, old, _, _, _, _}] ->
        Installed.replace(name, old, breaker, fn -> :ets.insert(service.instances, row) && :ok end)
        instance(service, key, breaker, rate_limit, concurrency, budget)

      [] ->
        remember(service, key, row)
    end
  rescue
    # The table went away meanwhile.
    ArgumentError -> get_without_table(service, key)
  end

  defp get_without_table(service, key) do
    {_key, _origin, breaker, rate_limit, concurrency, budget, _seen} = row(service, key)
    instance(service, key, breaker, rate_limit, concurrency, budget)
  end

  # Of two that come at once, one is first, and its row is both's.
  defp remember(%Service{instances: table} = service, key, row) do
    if room?(service) and not :ets.insert_new(table, row), do: :ets.update_counter(table, @count, -1)

    case :ets.lookup(table, {key}) do
      [{_key, _origin, breaker, rate_limit, concurrency, budget, _seen}] ->
        instance(service, key, breaker, rate_limit, concurrency, budget)

      [] ->
        {_key, _origin, breaker, rate_limit, concurrency, budget, _seen} = row
        instance(service, key, breaker, rate_limit, concurrency, budget)
    end
  end

  defp row(%Service{options: options, clock: clock} = service, key) do
    name = {service.name, key}

    {{key}, service.origin, Installed.another(service.breaker, name, service.breaker_options),
     RateLimiter.reconfigure(nil, name, options[:rate_limit], service.sleep, options[:clock]),
     Concurrency.new(name, options[:concurrency], options[:clock]), Retry.budget(nil, nil, service.retry, clock),
     seen(service)}
  end

  defp seen(%Service{options: options, clock: clock}),
    do: if(options[:idle_timeout] != :infinity, do: div(Native.clock_now(clock), 1_000_000), else: 0)

  # Takes one of the places there are.
  defp room?(%Service{instances: table, options: options} = service) do
    max = options[:max_instances]
    if options[:idle_timeout] != :infinity, do: sweep(service, 2)

    if :ets.update_counter(table, @count, {2, 1}, {@count, 0}) <= max do
      true
    else
      :ets.update_counter(table, @count, -1)
      evict(service, @looks)
    end
  end

  # The place of the one that goes is the newcomer's, so the count stays.
  defp evict(_service, 0), do: false

  defp evict(%Service{instances: table} = service, looks) do
    case turn(table) do
      [{_key, _, breaker, _, concurrency, _, _}] = [row] ->
        if idle?(service, row, breaker, concurrency) and gone?(table, row), do: true, else: evict(service, looks - 1)

      _none ->
        evict(service, looks - 1)
    end
  end

  defp idle?(service, {{key}, _, _, _, _, _, _}, breaker, concurrency),
    do: Installed.idle?(breaker, {service.name, key}) and (concurrency == nil or Concurrency.idle?(concurrency))

  # Of two who would have it go, one does.
  defp gone?(table, row), do: :ets.select_delete(table, [{row_head(row), [], [true]}]) == 1

  defp row_head({key, origin, _breaker, _rate_limit, _concurrency, _budget, _seen}),
    do: {key, origin, :_, :_, :_, :_, :_}

  # The row that the hand comes to next.
  defp turn(table) do
    key = following(table, :ets.lookup(table, @hand))
    :ets.insert(table, {@hand, key})
    if is_tuple(key), do: :ets.lookup(table, key), else: []
  end

  defp following(table, [{@hand, key}]) when key != :"$end_of_table" do
    :ets.next(table, key)
  rescue
    ArgumentError -> :ets.first(table)
  end

  defp following(table, _start), do: :ets.first(table)

  # Looks at some rows for those that have been idle for long enough.
  defp sweep(_service, 0), do: :ok

  defp sweep(%Service{instances: table, options: options} = service, looks) do
    with [{key, _, breaker, _, concurrency, _, seen} = row] <- turn(table) do
      now = seen(service)

      cond do
        not idle?(service, row, breaker, concurrency) -> :ets.update_element(table, key, {7, now})
        now - seen >= options[:idle_timeout] and gone?(table, row) -> :ets.update_counter(table, @count, -1)
        true -> :ok
      end
    end

    sweep(service, looks - 1)
  end

  @doc "Returns how many instances of a service are remembered."
  @spec count(Service.t()) :: non_neg_integer()
  def count(%Service{instances: nil}), do: 0
  def count(%Service{instances: table}), do: :ets.lookup_element(table, @count, 2)

  @doc "Forgets all instances."
  @spec forget(:ets.tid() | nil) :: :ok
  def forget(nil), do: :ok

  def forget(table) do
    :ets.delete(table)
    :ok
  rescue
    ArgumentError -> :ok
  end
end
