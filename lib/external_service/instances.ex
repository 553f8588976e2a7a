defmodule ExternalService.Instances do
  # The `{service, key}` that were used: each with a breaker and limits of its own, made from the service's options when it
  # is first asked for. They come and go, so they stand in a table and not in persistent terms.
  #
  # A table never has more than `:max_instances` rows. To make room, a hand goes round it: a row goes if there is nothing in
  # it to remember, its breaker closed and without a failure, its limits unused, so that nothing is lost. Where the hand
  # finds none, the newcomer is not remembered: its call is made, and what it would have taught is lost.
  #
  # Where only failures teach anything, an instance has no row before its first failure (`Instances.Fresh`): a million keys
  # whose calls succeed cost nothing.
  @moduledoc false

  alias ExternalService.CircuitBreaker.Installed
  alias ExternalService.Instances.{Fresh, Tables}
  alias ExternalService.{Concurrency, Native, RateLimiter, Retry, Service}

  # A key, what it was made of, its breaker and limits, and when it was last seen in use.
  @typep row ::
           {{key :: term()}, origin :: reference() | nil, Installed.t(), RateLimiter.t() | nil, Concurrency.t() | nil,
            Native.budget() | nil, seen :: integer()}

  # How many rows the hand looks at for one newcomer.
  @looks 32

  # The table's own rows; those of instances have a tuple as their key.
  @count :count
  @hand :hand
  @own_rows [{@count, 0}, {@hand, :"$end_of_table"}]

  @doc "Returns the instance of a service for a key."
  @spec get(Service.t(), term()) :: Service.t()
  def get(%Service{} = service, key) do
    case located(service, key) do
      {%Service{origin: origin} = service, [{_key, origin, _, _, _, _, _} = row]} -> instance(service, row)
      {service, [row]} -> make_again(service, key, row)
      {service, []} -> if fresh?(service), do: fresh(service, key), else: make(service, key)
    end
  end

  # There may be no table yet, or it is gone with its owner: then the owner is asked for one. If that is not there either,
  # or the service was stopped, there is nothing to look into.
  defp located(%Service{} = service, key) do
    with nil <- look_up(service, key) do
      service = Tables.of(service, @own_rows)
      {service, look_up(service, key) || []}
    else
      rows -> {service, rows}
    end
  end

  defp look_up(%Service{instances: table}, key) do
    :ets.lookup(table, {key})
  rescue
    ArgumentError -> nil
  end

  @spec instance(Service.t(), row()) :: Service.t()
  defp instance(%Service{name: name} = service, {{key}, _origin, breaker, rate_limit, concurrency, budget, _seen}) do
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

  # Nothing to keep before a failure: no limits of its own, and a breaker that hears of failures only.
  defp fresh?(%Service{rate_limit: nil, concurrency: nil, budget: nil, watch: :failures, breaker: breaker} = service),
    do: breaker != nil and service.breaker_options[:fault_injection] == nil

  defp fresh?(_service), do: false

  defp fresh(%Service{name: name, origin: origin} = service, key) do
    make = fn -> with %Service{origin: ^origin} = now <- Service.started(name), do: made(now, key), else: (_ -> nil) end
    instance(service, {{key}, nil, {Fresh, make}, nil, nil, nil, 0})
  end

  # A call that began before the options changed has nothing to teach an instance that is made of the new ones.
  defp made(service, key) do
    case located(service, key) do
      {service, []} -> make(service, key)
      {service, [_row]} -> get(service, key)
    end
  end

  # Of two that come at once, one is first, and its row is both's.
  defp make(%Service{instances: table} = service, key) do
    row = row(service, key)
    insert(service, row)
    instance(service, List.first(:ets.lookup(table, {key}), row))
  rescue
    ArgumentError -> instance(service, row(service, key))
  end

  defp insert(%Service{instances: table} = service, row),
    do: if(room?(service) and not :ets.insert_new(table, row), do: :ets.update_counter(table, @count, -1))

  @doc """
  Sees to it that the failure of a call is remembered whose instance was forgotten while the call was in flight.

  Nobody knows of calls in flight where there is no limit to count them, so an instance that has any may go like one that is
  idle.
  """
  @spec keep(Service.t()) :: :ok
  def keep(%Service{instances: table, part: nil, name: {_, key} = name, breaker: breaker} = service)
      when table != nil do
    if breaker != nil and Installed.object?(breaker), do: keep(service, key, name, look_up(service, key))
    :ok
  rescue
    ArgumentError -> :ok
  end

  def keep(_service), do: :ok

  defp keep(service, key, _name, []), do: insert(service, row_of(service, key))

  # It was made again before the call failed.
  defp keep(%Service{origin: origin, breaker: breaker}, _key, name, [{_, origin, {backend, config} = other, _, _, _, _}])
       when other != breaker,
       do: backend.melt(name, config)

  defp keep(_service, _key, _name, _row), do: :ok

  # Whose row was made of other options makes place for the new one: a state that a hand has set goes over.
  defp make_again(%Service{instances: table, name: name} = service, key, {_key, _origin, old, _, _, _, _}) do
    row = row(service, key)

    Installed.replace({name, key}, old, elem(row, 2), fn ->
      :ets.insert(table, row)
      :ok
    end)

    instance(service, row)
  rescue
    ArgumentError -> instance(service, row(service, key))
  end

  @spec row(Service.t(), term()) :: row()
  defp row(%Service{options: options, clock: clock} = service, key) do
    name = {service.name, key}

    {{key}, service.origin, service.maker.(name),
     RateLimiter.reconfigure(nil, name, options[:rate_limit], service.sleep, options[:clock]),
     Concurrency.new(name, options[:concurrency], options[:clock]), Retry.budget(%Service{}, service.retry, clock),
     now(service)}
  end

  defp row_of(%Service{breaker: breaker, rate_limit: rate_limit, concurrency: concurrency} = instance, key),
    do: {{key}, instance.origin, breaker, rate_limit, concurrency, instance.budget, now(instance)}

  defp now(%Service{options: options, clock: clock}),
    do: if(options[:idle_timeout] == :infinity, do: 0, else: div(Native.clock_now(clock), 1_000_000))

  # Takes one of the places there are, or that of one that goes.
  defp room?(%Service{instances: table, options: options} = service) do
    if options[:idle_timeout] != :infinity, do: sweep(service, 2)

    if :ets.update_counter(table, @count, 1) <= options[:max_instances] do
      true
    else
      :ets.update_counter(table, @count, -1)
      evict?(service, @looks)
    end
  end

  defp evict?(_service, 0), do: false

  defp evict?(service, looks) do
    case turn(service) do
      [row] -> (idle?(service, row) and gone?(service, row)) or evict?(service, looks - 1)
      [] -> evict?(service, looks - 1)
    end
  end

  # Looks at some rows for those that have been idle for long enough.
  defp sweep(_service, 0), do: :ok

  defp sweep(%Service{instances: table, options: options} = service, looks) do
    with [{key, _, _, _, _, _, seen} = row] <- turn(service) do
      now = now(service)

      cond do
        not idle?(service, row) -> :ets.update_element(table, key, {7, now})
        now - seen >= options[:idle_timeout] and gone?(service, row) -> :ets.update_counter(table, @count, -1)
        true -> :ok
      end
    end

    sweep(service, looks - 1)
  end

  defp idle?(%Service{name: name}, {{key}, _, breaker, rate_limit, concurrency, _, _}) do
    Installed.idle?(breaker, {name, key}) and (rate_limit == nil or RateLimiter.idle?(rate_limit)) and
      (concurrency == nil or Concurrency.idle?(concurrency))
  end

  # Of two who would have it go, one does. It is taken by its key and not by a pattern, which a key may look like. If it was
  # made again meanwhile, it is put back.
  defp gone?(%Service{instances: table, name: name}, {key, origin, breaker, _, _, _, _}) do
    case :ets.take(table, key) do
      [{_key, ^origin, _, _, _, _, _}] ->
        Installed.let_go({name, elem(key, 0)}, breaker)
        true

      [other] ->
        unless :ets.insert_new(table, other), do: :ets.update_counter(table, @count, -1)
        false

      [] ->
        false
    end
  end

  # The row at the hand, which moves on first: the row may go.
  defp turn(%Service{instances: table}) do
    key = at_hand(table, :ets.lookup_element(table, @hand, 2))
    :ets.insert(table, {@hand, following(table, key)})
    if is_tuple(key), do: :ets.lookup(table, key), else: []
  end

  defp at_hand(table, :"$end_of_table"), do: :ets.first(table)
  defp at_hand(_table, key), do: key

  # Where somebody else has removed the row at the hand, it starts at the beginning.
  defp following(table, key) do
    :ets.next(table, key)
  rescue
    ArgumentError -> :"$end_of_table"
  end

  @doc "Returns how many instances of a service are remembered."
  @spec count(Service.t()) :: non_neg_integer()
  def count(%Service{instances: table}) do
    :ets.lookup_element(table, @count, 2)
  rescue
    ArgumentError -> 0
  end

  @doc "Forgets all instances."
  @spec forget(:ets.tid() | nil) :: :ok
  def forget(table) do
    :ets.delete(table)
    :ok
  rescue
    ArgumentError -> :ok
  end
end
